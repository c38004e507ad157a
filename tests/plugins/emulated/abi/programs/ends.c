/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads and processes that begin and end while the library is being used. The argument says
 * which.
 */
#include <stdatomic.h>

#include "hip.h"

#ifndef COARSE
#define COARSE 1 /* how many rounds are taken in one step */
#endif

enum { ROUNDS = 16, STEP_US = 15000, CALLERS = 3, DEADLINE_S = 30 };

static atomic_int is_over;

static void *first_call(void *argument)
{
    int count;

    (void)argument;
    ANSWERS(0, hipGetDeviceCount(&count));
    return NULL;
}

/* A process is forked while another thread makes the first call, a bit later in each round. */
static void early(void)
{
    for (int round = 0; round < ROUNDS; round += COARSE) {
        pid_t child = start();
        if (!child) {
            pthread_t started;
            pid_t grandchild;

            alarm(DEADLINE_S);
            HOLDS(!pthread_create(&started, NULL, first_call, NULL));
            usleep(round * STEP_US);
            grandchild = start();
            if (!grandchild) {
                int count, code;

                alarm(DEADLINE_S);
                code = hipGetDeviceCount(&count);
                /* The library was used, or was not yet: this is no child's fault. */
                HOLDS(code == 0 || code == 3);
                finish();
            }
            wait_for(grandchild);
            HOLDS(!pthread_join(started, NULL));
            finish();
        }
        wait_for(child);
    }
}

static void *call_for_ever(void *argument)
{
    void *memory;

    (void)argument;
    while (!atomic_load(&is_over)) {
        ANSWERS(0, hipMalloc(&memory, 4096));
        ANSWERS(0, hipFree(memory));
    }
    return NULL;
}

/* Threads are cancelled in the middle of calls, also of the first one; others go on. */
static void cancelled(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[CALLERS];
        void *memory, *result;

        for (int i = 0; i < CALLERS; i++)
            HOLDS(!pthread_create(&threads[i], NULL, call_for_ever, NULL));
        usleep(STEP_US);
        for (int i = 0; i < CALLERS; i++)
            HOLDS(!pthread_cancel(threads[i]));
        ANSWERS(0, hipMalloc(&memory, 4096));
        ANSWERS(0, hipFree(memory));
        atomic_store(&is_over, 1);
        for (int i = 0; i < CALLERS; i++)
            HOLDS(!pthread_join(threads[i], &result));
        atomic_store(&is_over, 0);
    }
}

/* The program ends while others call. */
static void leaves(void)
{
    for (int round = 0; round < ROUNDS; round += COARSE) {
        pid_t child = start();
        if (!child) {
            pthread_t threads[CALLERS];

            alarm(DEADLINE_S);
            for (int i = 0; i < CALLERS; i++)
                HOLDS(!pthread_create(&threads[i], NULL, call_for_ever, NULL));
            usleep(round * 2 * STEP_US);
            finish();
        }
        wait_for(child);
    }
}

/* The thread that made the first call is gone. */
static void starter(void)
{
    pthread_t started;
    void *memory;
    pid_t child;

    HOLDS(!pthread_create(&started, NULL, first_call, NULL));
    HOLDS(!pthread_join(started, NULL));
    for (int i = 0; i < CALLERS; i++) {
        HOLDS(!pthread_create(&started, NULL, first_call, NULL));
        HOLDS(!pthread_join(started, NULL));
    }
    ANSWERS(0, hipMalloc(&memory, 4096));
    child = start();
    if (!child) {
        ANSWERS(3, hipFree(memory));
        finish();
    }
    wait_for(child);
    ANSWERS(0, hipFree(memory));
}

static void call_late(void)
{
    int count = 0;

    ANSWERS(0, hipGetDeviceCount(&count));
    /* The status is decided. */
    if (failures || !count)
        abort();
}

static int is_late;

__attribute__((destructor)) static void call_last(void)
{
    if (is_late)
        call_late();
}

/* The first call is made when the program ends, and another one still later. */
static void late(void)
{
    HOLDS(!atexit(call_late));
    is_late = 1;
}

static void last(void) { is_late = 1; }

int main(int count, char **words)
{
    void (*const parts[])(void) = {early, cancelled, leaves, starter, late, last};
    const char *const names[] = {"early", "cancelled", "leaves", "starter", "late", "last"};

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (count == 2 && !strcmp(words[1], names[i]))
            parts[i]();
    finish();
}
