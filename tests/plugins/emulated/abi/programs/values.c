/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that streams write and wait for, in memory that two processes share. Each process registers
 * it for its devices. The program ends while a stream waits for a value that never comes.
 */
#include <sys/mman.h>

#include "hip.h"

enum { NBYTES = 4096, NOT_READY = 600, GTE = 0, EQ = 1, AND = 2 };

static void *use_words(volatile uint64_t *words)
{
    void *found = NULL;

    ANSWERS(0, hipHostRegister((void *)words, NBYTES, 2));
    ANSWERS(0, hipHostGetDevicePointer(&found, (void *)words, 0));
    return found;
}

static int answer(volatile uint64_t *words)
{
    uint64_t *own = (uint64_t *)use_words(words);
    hipStream_t stream;

    ANSWERS(0, hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    ANSWERS(0, hipStreamWaitValue64(stream, own, (uint64_t)1 << 40, GTE, ~(uint64_t)0));
    ANSWERS(0, hipStreamWriteValue32(stream, own + 1, 7, 0));
    ANSWERS(0, hipStreamSynchronize(stream));
    HOLDS(words[0] == (uint64_t)1 << 40 && words[1] == 7);
    ANSWERS(0, hipHostUnregister((void *)words));
    finish();
    return 1;
}

int main(void)
{
    volatile uint64_t *words = (volatile uint64_t *)mmap(
        NULL, NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t *own;
    unsigned char *memory = NULL;
    hipStream_t stream, other;
    pid_t child = fork();
    int ended = 1, can = 0;

    if (!child)
        return answer(words);
    own = (uint64_t *)use_words(words);
    ANSWERS(0, hipDeviceGetAttribute(&can, (hipDeviceAttribute_t)10013, 0));
    HOLDS(can == 1);
    ANSWERS(0, hipHostMalloc((void **)&memory, NBYTES, 0));
    ANSWERS(0, hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    ANSWERS(0, hipStreamCreateWithFlags(&other, hipStreamNonBlocking));
    ANSWERS(0, hipStreamWaitValue32(stream, own + 1, 6, AND, 2));
    ANSWERS(0, hipMemsetAsync(memory, 9, NBYTES, stream));
    ANSWERS(NOT_READY, hipStreamQuery(stream));
    HOLDS(memory[0] == 0);
    ANSWERS(0, hipStreamWriteValue64(other, own, (uint64_t)1 << 40, 0));
    ANSWERS(0, hipStreamSynchronize(stream));
    HOLDS(memory[NBYTES - 1] == 9 && words[1] == 7);
    HOLDS(waitpid(child, &ended, 0) == child && ended == 0);

    ANSWERS(1, hipStreamWriteValue64(stream, NULL, 1, 0));
    ANSWERS(1, hipStreamWaitValue64(stream, (char *)own + 4, 1, EQ, ~(uint64_t)0));
    ANSWERS(1, hipStreamWaitValue64(stream, own, 1, 4, ~(uint64_t)0));
    ANSWERS(1, hipStreamWriteValue32(stream, &can, 1, 0));
    ANSWERS(0, hipStreamWaitValue64(stream, own, 1, EQ, ~(uint64_t)0));
    finish();
}
