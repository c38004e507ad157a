/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the program that are work of a stream: they have a thread of their own, other
 * threads go on calling meanwhile, and what was enqueued behind them waits.
 */
#include <semaphore.h>

#include "hip.h"

enum { NBYTES = 4096, NOT_READY = 600, UNKNOWN = 999 };

static sem_t entered, left;
static pthread_t enqueuer;
static int order[4], known;

static void wait_for_another(void *argument)
{
    HOLDS(argument == &entered);
    HOLDS(!pthread_equal(pthread_self(), enqueuer));
    sem_post(&entered);
    /* Somebody posts it who has called the library meanwhile. */
    sem_wait(&left);
    order[known++] = 1;
}

static void is_told(hipStream_t stream, hipError_t status, void *argument)
{
    HOLDS(stream && argument == &known);
    ANSWERS(0, status);
    order[known++] = 2;
}

static void calls(void *argument)
{
    void *memory = NULL;

    /* No vendor allows that; AMD's library does not stop it. */
    ANSWERS(0, hipMalloc(&memory, NBYTES));
    ANSWERS(0, hipIpcGetMemHandle((hipIpcMemHandle_t *)argument, memory));
    /* A function that waits for itself would wait for ever. */
    ANSWERS(UNKNOWN, hipDeviceSynchronize());
}

static void *release(void *argument)
{
    void *memory = NULL;

    (void)argument;
    sem_wait(&entered);
    ANSWERS(0, hipMalloc(&memory, NBYTES));
    sem_post(&left);
    return NULL;
}

int main(void)
{
    hipStream_t first, second;
    hipEvent_t event;
    hipIpcMemHandle_t handle;
    pthread_t other;
    void *memory, *spare;
    unsigned char found[2] = {0, 0};

    enqueuer = pthread_self();
    sem_init(&entered, 0, 0);
    sem_init(&left, 0, 0);
    ANSWERS(0, hipStreamCreate(&first));
    ANSWERS(0, hipStreamCreate(&second));
    ANSWERS(0, hipEventCreateWithFlags(&event, hipEventDisableTiming));
    ANSWERS(0, hipMalloc(&memory, NBYTES));
    ANSWERS(0, hipMalloc(&spare, NBYTES));
    ANSWERS(0, hipMemset(memory, 7, NBYTES));

    /* The function waits; what is behind it waits, and nothing else does. */
    ANSWERS(0, hipLaunchHostFunc(first, wait_for_another, &entered));
    ANSWERS(0, hipMemsetAsync(memory, 9, NBYTES, first));
    ANSWERS(0, hipStreamAddCallback(first, is_told, &known, 0));
    ANSWERS(0, hipEventRecord(event, first));
    ANSWERS(NOT_READY, hipStreamQuery(first));
    ANSWERS(NOT_READY, hipEventQuery(event));
    ANSWERS(0, hipMemsetAsync(spare, 5, NBYTES, second));
    ANSWERS(0, hipStreamSynchronize(second));
    ANSWERS(0, hipStreamWaitEvent(second, event, 0));
    ANSWERS(NOT_READY, hipStreamQuery(second));
    HOLDS(!known);

    /* Who has called the library lets it end; freeing waits for all of that. */
    HOLDS(!pthread_create(&other, NULL, release, NULL));
    ANSWERS(0, hipFree(spare));
    HOLDS(!pthread_join(other, NULL));
    HOLDS(known == 2 && order[0] == 1 && order[1] == 2);
    ANSWERS(0, hipStreamQuery(first));
    ANSWERS(0, hipStreamQuery(second));
    ANSWERS(0, hipEventQuery(event));
    ANSWERS(0, hipMemcpy(found, memory, 1, hipMemcpyDeviceToHost));
    HOLDS(found[0] == 9);

    /* Memory that is not pinned is the caller's again when the call returns. */
    sem_post(&left);
    ANSWERS(0, hipLaunchHostFunc(first, wait_for_another, &entered));
    found[1] = 3;
    ANSWERS(0, hipMemcpyAsync(memory, &found[1], 1, hipMemcpyHostToDevice, first));
    found[1] = 4;
    ANSWERS(0, hipStreamSynchronize(first));
    ANSWERS(0, hipMemcpy(found, memory, 1, hipMemcpyDeviceToHost));
    HOLDS(found[0] == 3);

    ANSWERS(0, hipLaunchHostFunc(second, calls, &handle));
    ANSWERS(0, hipStreamDestroy(second));
    ANSWERS(0, hipStreamDestroy(first));
    ANSWERS(0, hipFree(memory));
    finish();
}
