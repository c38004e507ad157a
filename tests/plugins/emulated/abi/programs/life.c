/* SPDX-License-Identifier: Apache-2.0
 *
 * The library in the life of a process: threads, forks and signals. The argument says which.
 */
#include "hip.h"

static pthread_barrier_t barrier;

static void *in_thread(void *argument)
{
    int mine = (int)(intptr_t)argument, found = -1;
    void *memory = NULL;

    ANSWERS(0, hipSetDevice(mine));
    if (mine)
        ANSWERS(1, hipFree((void *)1));
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 20; i++) {
        ANSWERS(0, hipGetDevice(&found));
        HOLDS(found == mine);
        ANSWERS(0, hipMalloc(&memory, 4096));
        ANSWERS(0, hipFree(memory));
    }
    /* A failure belongs to the thread that met it. */
    ANSWERS(mine ? 1 : 0, hipGetLastError());
    return NULL;
}

static void threads(void)
{
    pthread_t started[4];

    pthread_barrier_init(&barrier, NULL, 4);
    for (intptr_t i = 0; i < 4; i++)
        HOLDS(!pthread_create(&started[i], NULL, in_thread, (void *)(i % 2)));
    for (int i = 0; i < 4; i++)
        pthread_join(started[i], NULL);
}

static void forks(void)
{
    void *memory = NULL;
    pid_t child;

    ANSWERS(0, hipMalloc(&memory, 4096));
    child = start();
    if (!child) {
        /* Who was forked after the library was used cannot use it. */
        ANSWERS(3, hipMalloc(&memory, 4096));
        ANSWERS(3, hipFree(memory));
        finish();
    }
    wait_for(child);
    ANSWERS(0, hipMemset(memory, 1, 4096));
    ANSWERS(0, hipFree(memory));
}

static void nothing(void)
{
    int count = 7, version = 0;

    /* No device is visible. */
    ANSWERS(100, hipGetDeviceCount(&count));
    HOLDS(count == 0);
    ANSWERS(100, hipInit(0));
    ANSWERS(100, hipSetDevice(0));
    ANSWERS(100, hipFree(NULL));
    ANSWERS(100, hipIpcGetMemHandle(NULL, NULL));
    /* Asking forgets nothing. */
    HOLDS(hipGetLastError() == 100 && hipGetLastError() == 100 && hipPeekAtLastError() == 100);
    ANSWERS(0, hipRuntimeGetVersion(&version));
    HOLDS(version > 0);
}

static void signals(void)
{
    int count;

    ANSWERS(0, hipGetDeviceCount(&count));
    HOLDS(signal(SIGINT, SIG_DFL) == SIG_DFL);
    HOLDS(signal(SIGPIPE, SIG_DFL) == SIG_DFL);
    fflush(stdout);
    raise(failures ? SIGABRT : SIGINT);
}

int main(int count, char **words)
{
    void (*const parts[])(void) = {threads, forks, nothing, signals};
    const char *const names[] = {"threads", "forks", "nothing", "signals"};

    for (int i = 0; i < 4; i++)
        if (count == 2 && !strcmp(words[1], names[i]))
            parts[i]();
    finish();
}
