// SPDX-License-Identifier: Apache-2.0
// An importer that holds a block as fast as a processor can, and reads it while it holds it; and, as a
// library, the exporter that frees and reuses that block.
//
//     hold_probe CONTROL ROW BLOCK INDEX HOLDS
//
// The first three are descriptors: of a control segment, of a row, and of a block with the generation
// that its handle names and the contents, which are that generation while it lives. Prints how many
// of so many holds that succeeded read the contents of another life.

#include <linux/membarrier.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINES = 1 << 21, DELAYS = 48, OFTEN = 32, LIFE = 300 };

static volatile uint64_t *map(const char *descriptor, int protection) {
    struct stat found;
    int number = atoi(descriptor);
    if (fstat(number, &found)) exit(2);
    void *address = mmap(NULL, found.st_size, protection, MAP_SHARED, number, 0);
    if (address == MAP_FAILED) exit(2);
    return address;
}

// Give the block one life after another until told to stop; return how many there were.
long own(volatile uint64_t *control, volatile uint64_t *row, volatile uint64_t *block, long index,
         int has_barrier, volatile int *is_over) {
    uint64_t generation = control[index];
    long lives = 0;
    while (!*is_over) {
        // The contents before the handle: an importer takes the handle as soon as it is there.
        block[1] = generation;
        block[0] = generation;
        for (volatile int i = 0; i < LIFE; i++) {}
        control[index] = generation + 1;
        if (has_barrier && syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0)) return -1;
        while (row[index] && !*is_over) {}
        block[1] = 0;
        generation += 2;
        control[index] = generation;
        lives++;
    }
    return lives;
}

int main(int count, char **arguments) {
    if (count != 6) return 2;
    volatile uint64_t *control = map(arguments[1], PROT_READ);
    volatile uint64_t *row = map(arguments[2], PROT_READ | PROT_WRITE);
    volatile uint64_t *block = map(arguments[3], PROT_READ);
    long index = atol(arguments[4]), holds = atol(arguments[5]), held = 0, wrong = 0;
    // Stores to lines that are in no cache: those after them become visible late.
    volatile uint64_t *far = calloc(LINES, 64);
    uint64_t seed = 1;
    if (!far || syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0)) return 3;
    for (long i = 0; i < LINES; i++) far[i * 8] = 1;
    for (long i = 0; held < holds; i++) {
        uint64_t generation = block[0];
        if (i % OFTEN == 0)
            for (int j = 0; j < DELAYS; j++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                far[(seed >> 40) % LINES * 8] = seed;
            }
        row[index] = generation;
        if (control[index] == generation) {
            held++;
            wrong += block[1] != generation;
        }
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        row[index] = 0;
    }
    printf("%ld\n", wrong);
    return 0;
}
