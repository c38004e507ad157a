/* SPDX-License-Identifier: Apache-2.0
 *
 * One process shares memory with another: share METHOD WHITELIST START DEVICE
 *
 * METHOD     handle, handle2, fabric or key
 * WHITELIST  1 where the importer is admitted by its number, 0 where everybody is
 * START      fork, before the first call, or exec
 * DEVICE     that of the importer, 0 where METHOD is key; the exporter has device 0
 */
#include <sys/socket.h>
#include <sys/wait.h>

#include "program.h"

enum { KEY_NBYTES = 65 };

struct message {
    uint64_t share;
    aclrtMemFabricHandle fabric;
    char key[KEY_NBYTES];
    size_t nbytes;
};

static const char *method;
static int is_admitted;

static int is_method(const char *name) { return !strcmp(method, name); }

static aclrtMemSharedHandleType kind_of_handle(void)
{
    return is_method("fabric") ? ACL_MEM_SHARE_HANDLE_TYPE_FABRIC
                               : ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT;
}

static void *share_of(struct message *message)
{
    return is_method("fabric") ? (void *)&message->fabric : (void *)&message->share;
}

static void export_handle(struct message *message, int32_t pid, aclrtDrvMemHandle handle)
{
    uint64_t flags = is_admitted ? ACL_RT_VMM_EXPORT_FLAG_DEFAULT
                                 : ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION;
    if (is_method("handle")) {
        OK(aclrtMemExportToShareableHandle(handle, ACL_MEM_HANDLE_TYPE_NONE, flags,
                                           &message->share));
        if (is_admitted)
            OK(aclrtMemSetPidToShareableHandle(message->share, &pid, 1));
        return;
    }
    OK(aclrtMemExportToShareableHandleV2(handle, flags, kind_of_handle(), share_of(message)));
    if (is_admitted)
        OK(aclrtMemSetPidToShareableHandleV2(share_of(message), kind_of_handle(), &pid, 1));
}

static void exporter(int socket)
{
    struct message message;
    memset(&message, 0, sizeof message);
    aclrtDrvMemHandle handle = NULL;
    void *address = NULL;
    int32_t pid = 0;
    char done;

    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));
    receive_all(socket, &pid, sizeof pid);
    aclrtPhysicalMemProp prop = device_memory(0);
    OK(aclrtMemGetAllocationGranularity(&prop, ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM,
                                        &message.nbytes));
    if (is_method("key")) {
        OK(aclrtMalloc(&address, message.nbytes, ACL_MEM_MALLOC_HUGE_FIRST));
        uint64_t flags = is_admitted ? ACL_RT_IPC_MEM_EXPORT_FLAG_DEFAULT
                                     : ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION;
        OK(aclrtIpcMemGetExportKey(address, message.nbytes, message.key, KEY_NBYTES, flags));
        TRUE(strlen(message.key) == KEY_NBYTES - 1);
        if (is_admitted)
            OK(aclrtIpcMemSetImportPid(message.key, &pid, 1));
    } else {
        OK(aclrtMallocPhysical(&handle, message.nbytes, &prop, 0));
        address = map_whole(handle, message.nbytes);
        export_handle(&message, pid, handle);
    }
    write_text(address, "from the exporter");
    OK(aclrtSynchronizeDevice());
    send_all(socket, &message, sizeof message);
    receive_all(socket, &done, 1);
    TRUE(has_text(address, "from the importer"));
    if (is_method("key")) {
        OK(aclrtIpcMemClose(message.key));
        OK(aclrtFree(address));
    } else {
        OK(aclrtUnmapMem(address));
        OK(aclrtFreePhysical(handle));
        OK(aclrtReleaseMemAddress(address));
    }
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
}

static void importer(int socket, int32_t device)
{
    struct message message;
    aclrtDrvMemHandle handle = NULL;
    void *address = NULL;
    int32_t pid = 0;

    OK(aclInit(NULL));
    OK(aclrtSetDevice(device));
    if (device)
        OK(aclrtDeviceEnablePeerAccess(0, 0));
    OK(aclrtDeviceGetBareTgid(&pid));
    TRUE(pid != getpid());
    send_all(socket, &pid, sizeof pid);
    receive_all(socket, &message, sizeof message);
    if (is_method("key"))
        OK(aclrtIpcMemImportByKey(&address, message.key, ACL_RT_IPC_MEM_IMPORT_FLAG_DEFAULT));
    else if (is_method("handle"))
        OK(aclrtMemImportFromShareableHandle(message.share, device, &handle));
    else
        OK(aclrtMemImportFromShareableHandleV2(share_of(&message), kind_of_handle(), 0, &handle));
    if (!is_method("key"))
        address = map_whole(handle, message.nbytes);
    TRUE(has_text(address, "from the exporter"));
    write_text(address, "from the importer");
    OK(aclrtSynchronizeDevice());
    if (is_method("key")) {
        OK(aclrtIpcMemClose(message.key));
    } else {
        OK(aclrtUnmapMem(address));
        OK(aclrtReleaseMemAddress(address));
        OK(aclrtFreePhysical(handle));
    }
    send_all(socket, "!", 1);
    OK(aclrtResetDevice(device));
    OK(aclFinalize());
}

int main(int count, char **arguments)
{
    int sockets[2], status = 0;
    if (count < 5)
        return 4;
    method = arguments[1];
    is_admitted = atoi(arguments[2]);
    int32_t device = atoi(arguments[4]);
    if (count > 5) {
        importer(atoi(arguments[5]), device);
        return 0;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        return 5;
    pid_t child = fork();
    if (!child && !strcmp(arguments[3], "fork")) {
        close(sockets[0]);
        importer(sockets[1], device);
        return 0;
    }
    if (!child) {
        char number[16];
        close(sockets[0]);
        snprintf(number, sizeof number, "%d", sockets[1]);
        execl("/proc/self/exe", arguments[0], arguments[1], arguments[2], arguments[3],
              arguments[4], number, (char *)NULL);
        return 6;
    }
    close(sockets[1]);
    exporter(sockets[0]);
    waitpid(child, &status, 0);
    puts("shared");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 7;
}
