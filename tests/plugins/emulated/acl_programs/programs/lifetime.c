/* SPDX-License-Identifier: Apache-2.0
 *
 * Who frees first: lifetime METHOD, where METHOD is handle or key.
 */
#include <sys/socket.h>
#include <sys/wait.h>

#include "program.h"

enum { NBYTES = 2 << 20, KEY_NBYTES = 65 };

/* The owner of physical memory frees it while it is imported: the importer keeps it. */
static void handle_exporter(int socket)
{
    aclrtPhysicalMemProp prop = device_memory(0);
    aclrtDrvMemHandle handle = NULL;
    uint64_t share = 0;
    size_t total = 0, before = 0, after = 0;
    char done;

    OK(aclrtGetMemInfo(ACL_HBM_MEM, &before, &total));
    OK(aclrtMallocPhysical(&handle, NBYTES, &prop, 0));
    void *address = map_whole(handle, NBYTES);
    write_text(address, "outlives its owner");
    OK(aclrtMemExportToShareableHandle(handle, ACL_MEM_HANDLE_TYPE_NONE,
                                       ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION, &share));
    send_all(socket, &share, sizeof share);
    receive_all(socket, &done, 1);
    OK(aclrtUnmapMem(address));
    OK(aclrtFreePhysical(handle));
    OK(aclrtReleaseMemAddress(address));
    OK(aclrtGetMemInfo(ACL_HBM_MEM, &after, &total));
    TRUE(before - after == NBYTES);
    send_all(socket, "!", 1);
    receive_all(socket, &done, 1);
    OK(aclrtGetMemInfo(ACL_HBM_MEM, &after, &total));
    TRUE(before == after);
}

static void handle_importer(int socket)
{
    aclrtDrvMemHandle handle = NULL, late = NULL;
    uint64_t share = 0;
    char done;

    receive_all(socket, &share, sizeof share);
    OK(aclrtMemImportFromShareableHandle(share, 0, &handle));
    send_all(socket, "!", 1);
    receive_all(socket, &done, 1);
    void *address = map_whole(handle, NBYTES);
    TRUE(has_text(address, "outlives its owner"));
    CHECK(aclrtMemImportFromShareableHandle(share, 0, &late), ACL_ERROR_RT_INVALID_HANDLE);
    OK(aclrtUnmapMem(address));
    OK(aclrtReleaseMemAddress(address));
    OK(aclrtFreePhysical(handle));
    send_all(socket, "!", 1);
}

/* The owner of a key closes it while it is imported: the importer's memory is gone. */
static void key_exporter(int socket)
{
    void *address = NULL;
    char key[KEY_NBYTES], done;

    OK(aclrtMalloc(&address, NBYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    write_text(address, "gone with its owner");
    OK(aclrtIpcMemGetExportKey(address, NBYTES, key, KEY_NBYTES,
                               ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION));
    send_all(socket, key, sizeof key);
    receive_all(socket, &done, 1);
    OK(aclrtIpcMemClose(key));
    OK(aclrtFree(address));
    send_all(socket, "!", 1);
    receive_all(socket, &done, 1);
}

static void key_importer(int socket)
{
    void *address = NULL, *again = NULL;
    char key[KEY_NBYTES], done;

    receive_all(socket, key, sizeof key);
    OK(aclrtIpcMemImportByKey(&address, key, 0));
    OK(aclrtIpcMemImportByKey(&again, key, 0));
    TRUE(address == again && has_text(address, "gone with its owner"));
    send_all(socket, "!", 1);
    receive_all(socket, &done, 1);
    CHECK(aclrtMemcpy(&done, 1, address, 1, ACL_MEMCPY_DEVICE_TO_HOST),
          ACL_ERROR_RT_DEVICE_MEM_ERROR);
    OK(aclrtIpcMemClose(key));
    OK(aclrtIpcMemClose(key));
    CHECK(aclrtIpcMemClose(key), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    CHECK(aclrtIpcMemImportByKey(&address, key, 0), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    send_all(socket, "!", 1);
}

int main(int count, char **arguments)
{
    int sockets[2], status = 0;
    if (count != 2 || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        return 4;
    int is_key = !strcmp(arguments[1], "key");
    pid_t child = fork();
    close(sockets[!!child]);
    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));
    if (!child)
        (is_key ? key_importer : handle_importer)(sockets[1]);
    else
        (is_key ? key_exporter : handle_exporter)(sockets[0]);
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
    if (!child)
        return 0;
    waitpid(child, &status, 0);
    puts("lived");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 5;
}
