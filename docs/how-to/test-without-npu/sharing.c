/* Two processes share device memory by an IPC key. A test for machines with and without an NPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "acl/acl.h"

#define CHECK(call)                                                               \
    do {                                                                          \
        aclError code = (call);                                                   \
        if (code != ACL_SUCCESS) {                                                \
            fprintf(stderr, "%s: %d, %s\n", #call, code, aclGetRecentErrMsg());   \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

enum { NBYTES = 2 << 20, KEY_NBYTES = 65 };

static void export_memory(int peer)
{
    void *memory;
    char key[KEY_NBYTES], done;
    int32_t pid;

    CHECK(aclInit(NULL));
    CHECK(aclrtSetDevice(0));
    CHECK(aclrtMalloc(&memory, NBYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(aclrtMemcpy(memory, NBYTES, "hello", 6, ACL_MEMCPY_HOST_TO_DEVICE));
    CHECK(aclrtIpcMemGetExportKey(memory, NBYTES, key, KEY_NBYTES, 0));
    if (read(peer, &pid, sizeof pid) != sizeof pid)
        exit(2);
    CHECK(aclrtIpcMemSetImportPid(key, &pid, 1));
    if (write(peer, key, KEY_NBYTES) != KEY_NBYTES || read(peer, &done, 1) != 1)
        exit(2);
    CHECK(aclrtIpcMemClose(key)); /* only now, when the importer has closed it */
    CHECK(aclrtFree(memory));
    CHECK(aclrtResetDevice(0));
    CHECK(aclFinalize());
}

static void import_memory(int peer)
{
    void *memory;
    char key[KEY_NBYTES], text[6];
    int32_t pid;

    CHECK(aclInit(NULL));
    CHECK(aclrtSetDevice(0));
    CHECK(aclrtDeviceGetBareTgid(&pid)); /* getpid() does not do in a container */
    if (write(peer, &pid, sizeof pid) != sizeof pid || read(peer, key, KEY_NBYTES) != KEY_NBYTES)
        exit(2);
    CHECK(aclrtIpcMemImportByKey(&memory, key, 0));
    CHECK(aclrtMemcpy(text, sizeof text, memory, sizeof text, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(aclrtIpcMemClose(key));
    if (strcmp(text, "hello") || write(peer, "!", 1) != 1)
        exit(3);
    CHECK(aclrtResetDevice(0));
    CHECK(aclFinalize());
}

int main(void)
{
    int sockets[2], status;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        return 4;
    pid_t child = fork(); /* before the first call: a device does not survive a fork */
    close(sockets[!!child]); /* so that each side learns of the end of the other */
    if (!child) {
        import_memory(sockets[1]);
        return 0;
    }
    export_memory(sockets[0]);
    wait(&status);
    puts(status ? "failed" : "shared");
    return status != 0;
}
