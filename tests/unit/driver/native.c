// SPDX-License-Identifier: Apache-2.0
// Functions with every kind of parameter.
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

typedef struct { unsigned char bytes[64]; } handle;
typedef struct { int first; uint64_t second; unsigned char rest[16]; } record;

static volatile int is_open;

int number_of(void) { return NUMBER; }
const char *text(int wanted) { return wanted ? "caf\xc3\xa9" : NULL; }
int fail(void **pointer) { *pointer = (void *)1; return 207000; }

int add(void *pointer, size_t offset, int less, void **sum)
{
    *sum = (char *)pointer + offset - less;
    return 0;
}

int by_value(handle given, unsigned flags, handle *back, unsigned *got)
{
    for (int i = 0; i < 64; i++)
        back->bytes[i] = given.bytes[63 - i];
    *got = flags;
    return 0;
}

int fields(const record *given, uint64_t *sum)
{
    *sum = given->first + given->second;
    for (int i = 0; i < 16; i++)
        *sum += given->rest[i];
    return 0;
}

int records(const record *given, size_t count, uint64_t *sum)
{
    *sum = 0;
    for (size_t i = 0; i < count; i++)
        *sum += given[i].first * given[i].second;
    return 0;
}

int wait_until_open(int seconds)
{
    for (int i = 0; i < seconds * 1000 && !is_open; i++)
        usleep(1000);
    return !is_open;
}

int open_now(void) { is_open = 1; return 0; }
