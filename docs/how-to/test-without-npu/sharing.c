/* A test for machines with and without an NPU: two processes share device memory by an IPC key. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "acl/acl.h"

enum { NBYTES = 2 << 20, KEY_NBYTES = 65 };

static int peer; /* a socket to the other process */

/* Ends this process. The other process ends too, as its next read or write at the socket fails. */
static void give_up(const char *why, int code)
{
    const char *text = aclGetRecentErrMsg();
    fprintf(stderr, "%s: %d, %s\n", why, code, text ? text : "no text");
    close(peer);
    wait(NULL);
    exit(1);
}

#define CHECK(call)                                                               \
    do {                                                                          \
        aclError code = (call);                                                   \
        if (code != ACL_SUCCESS)                                                  \
            give_up(#call, code);                                                 \
    } while (0)

static void export_memory(void)
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
        give_up("no importer", 0);
    CHECK(aclrtIpcMemSetImportPid(key, &pid, 1));
    if (write(peer, key, KEY_NBYTES) != KEY_NBYTES || read(peer, &done, 1) != 1)
        give_up("no answer", 0);
    CHECK(aclrtIpcMemClose(key)); /* allowed only after the importer has closed the key */
    CHECK(aclrtFree(memory));
    CHECK(aclrtResetDevice(0));
    CHECK(aclFinalize());
}

static void import_memory(void)
{
    void *memory;
    char key[KEY_NBYTES], text[6];
    int32_t pid;

    CHECK(aclInit(NULL));
    CHECK(aclrtSetDevice(0));
    CHECK(aclrtDeviceGetBareTgid(&pid)); /* getpid() would be wrong in a container */
    if (write(peer, &pid, sizeof pid) != sizeof pid || read(peer, key, KEY_NBYTES) != KEY_NBYTES)
        give_up("no key", 0);
    CHECK(aclrtIpcMemImportByKey(&memory, key, 0));
    CHECK(aclrtMemcpy(text, sizeof text, memory, sizeof text, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(aclrtIpcMemClose(key));
    if (strcmp(text, "hello") || write(peer, "!", 1) != 1)
        give_up("the text is wrong, or the exporter has ended", 0);
    CHECK(aclrtResetDevice(0));
    CHECK(aclFinalize());
}

int main(void)
{
    int sockets[2], status;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        return 4;
    pid_t child = fork(); /* before the first ACL call: a device does not survive a fork */
    peer = sockets[!child];
    close(sockets[!!child]);
    if (!child) {
        import_memory();
        return 0;
    }
    export_memory();
    wait(&status);
    puts(status ? "failed" : "shared");
    return status != 0;
}
