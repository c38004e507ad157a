/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the program that are work of a stream, on a thread of the library's or on the one
 * that the stream was subscribed to; and the library in the life of threads and processes.
 */
#include <pthread.h>
#include <semaphore.h>
#include <sys/wait.h>

#include "program.h"

#ifndef COARSE
#define COARSE 1 /* how many turns are taken in one step */
#endif

enum { NBYTES = 2 << 20, ROUNDS = 12, STEP_US = 20000, DEADLINE_S = 30 };

static sem_t entered, left;
static aclrtContext context;
static pthread_t enqueuer, reporter;
static volatile int is_over, known;

static void wait_for_another(void *argument)
{
    TRUE(argument == &entered && !pthread_equal(pthread_self(), enqueuer));
    sem_post(&entered);
    sem_wait(&left);
    known++;
}

static void *release(void *argument)
{
    void *address = NULL;

    (void)argument;
    OK(aclrtSetCurrentContext(context));
    sem_wait(&entered);
    OK(aclrtMalloc(&address, NBYTES, ACL_MEM_MALLOC_NORMAL_ONLY));
    OK(aclrtFree(address));
    sem_post(&left);
    return NULL;
}

static void on_a_thread_of_the_library(void)
{
    aclrtStream stream = NULL;
    aclrtStreamStatus status = ACL_STREAM_STATUS_COMPLETE;
    pthread_t other;

    OK(aclrtCreateStream(&stream));
    OK(aclrtLaunchHostFunc(stream, wait_for_another, &entered));
    OK(aclrtStreamQuery(stream, &status));
    TRUE(status == ACL_STREAM_STATUS_NOT_READY && !known);
    CHECK(aclrtSynchronizeStreamWithTimeout(stream, 10), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    TRUE(!pthread_create(&other, NULL, release, NULL));
    OK(aclrtSynchronizeStream(stream));
    TRUE(known == 1);
    TRUE(!pthread_join(other, NULL));
    OK(aclrtDestroyStream(stream));
}

static void is_reported(void *argument)
{
    TRUE(argument == &known && pthread_equal(pthread_self(), reporter));
    known++;
}

static void *report(void *argument)
{
    (void)argument;
    /* As the vendor's examples do, whatever it answers: it begins before it is subscribed. */
    while (!is_over)
        (void)aclrtProcessReport(50);
    return NULL;
}

static void on_a_subscribed_thread(void)
{
    aclrtStream stream = NULL;

    known = 0;
    OK(aclrtCreateStream(&stream));
    CHECK(aclrtLaunchCallback(NULL, NULL, ACL_CALLBACK_BLOCK, stream), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtLaunchCallback(is_reported, NULL, ACL_CALLBACK_BLOCK, stream),
          ACL_ERROR_RT_STREAM_NO_CB_REG);
    CHECK(aclrtProcessReport(10), ACL_ERROR_RT_THREAD_SUBSCRIBE);
    TRUE(!pthread_create(&reporter, NULL, report, NULL));
    OK(aclrtSubscribeReport((uint64_t)reporter, stream));
    CHECK(aclrtSubscribeReport((uint64_t)enqueuer, stream), ACL_ERROR_RT_STREAM_SUBSCRIBE);
    for (int i = 0; i < ROUNDS; i++)
        OK(aclrtLaunchCallback(is_reported, (void *)&known, ACL_CALLBACK_BLOCK, stream));
    OK(aclrtSynchronizeStream(stream));
    TRUE(known == ROUNDS);
    OK(aclrtUnSubscribeReport((uint64_t)reporter, stream));
    CHECK(aclrtUnSubscribeReport((uint64_t)reporter, stream), ACL_ERROR_RT_THREAD_SUBSCRIBE);
    is_over = 1;
    TRUE(!pthread_join(reporter, NULL));
    OK(aclrtDestroyStream(stream));
}

static void callbacks(void)
{
    enqueuer = pthread_self();
    sem_init(&entered, 0, 0);
    sem_init(&left, 0, 0);
    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));
    OK(aclrtGetCurrentContext(&context));
    on_a_thread_of_the_library();
    on_a_subscribed_thread();
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
}

static void *first_call(void *argument)
{
    uint32_t count = 0;

    (void)argument;
    OK(aclrtGetDeviceCount(&count));
    return NULL;
}

static void wait_for(pid_t child)
{
    int status = 0;

    TRUE(waitpid(child, &status, 0) == child);
    TRUE(WIFEXITED(status) && !WEXITSTATUS(status));
}

/* A process is forked while another thread makes the first call, a bit later in each round. */
static void early(void)
{
    for (int turn = 0; turn < ROUNDS; turn += COARSE) {
        pid_t child = fork();
        if (!child) {
            pthread_t started;
            pid_t grandchild;

            alarm(DEADLINE_S);
            TRUE(!pthread_create(&started, NULL, first_call, NULL));
            usleep(turn * STEP_US);
            grandchild = fork();
            if (!grandchild) {
                uint32_t count = 0;
                aclError code;

                alarm(DEADLINE_S);
                code = aclrtGetDeviceCount(&count);
                /* The last one where that thread was in the call itself. */
                TRUE(code == ACL_SUCCESS || code == ACL_ERROR_RT_DRV_INTERNAL_ERROR);
                exit(0);
            }
            wait_for(grandchild);
            TRUE(!pthread_join(started, NULL));
            exit(0);
        }
        wait_for(child);
    }
}

int main(int count, char **words)
{
    if (count == 2 && !strcmp(words[1], "early"))
        early();
    else
        callbacks();
    puts("called");
    return 0;
}
