/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream of one process waits for an event of another, and then reads what is there.
 */
#include <sys/socket.h>
#include <sys/wait.h>

#include "program.h"

enum { NBYTES = 2 << 20 };

struct message {
    aclrtIpcEventHandle event;
    uint64_t share;
};

static void producer(int socket)
{
    aclrtPhysicalMemProp prop = device_memory(0);
    aclrtDrvMemHandle handle = NULL;
    aclrtStream stream = NULL;
    aclrtEvent event = NULL;
    struct message message;
    char done;

    OK(aclrtCreateStream(&stream));
    OK(aclrtCreateEventExWithFlag(&event, ACL_EVENT_IPC));
    CHECK(aclrtResetEvent(event, stream), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
    OK(aclrtIpcGetEventHandle(event, &message.event));
    OK(aclrtMallocPhysical(&handle, NBYTES, &prop, 0));
    void *address = map_whole(handle, NBYTES);
    OK(aclrtMemExportToShareableHandle(handle, ACL_MEM_HANDLE_TYPE_NONE,
                                       ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION,
                                       &message.share));
    OK(aclrtMemsetAsync(address, NBYTES, 'e', NBYTES, stream));
    OK(aclrtRecordEvent(event, stream));
    send_all(socket, &message, sizeof message);
    receive_all(socket, &done, 1);
    OK(aclrtDestroyEvent(event));
    OK(aclrtDestroyStream(stream));
    OK(aclrtUnmapMem(address));
    OK(aclrtFreePhysical(handle));
    OK(aclrtReleaseMemAddress(address));
    send_all(socket, "!", 1);
}

static void consumer(int socket)
{
    aclrtDrvMemHandle handle = NULL;
    aclrtStream stream = NULL;
    aclrtEvent event = NULL;
    aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_NOT_READY;
    struct message message;
    void *host = NULL;
    char done;

    receive_all(socket, &message, sizeof message);
    OK(aclrtIpcOpenEventHandle(message.event, &event));
    OK(aclrtMemImportFromShareableHandle(message.share, 0, &handle));
    void *address = map_whole(handle, NBYTES);
    OK(aclrtCreateStream(&stream));
    OK(aclrtMallocHost(&host, NBYTES));
    OK(aclrtStreamWaitEvent(stream, event));
    OK(aclrtMemcpyAsync(host, NBYTES, address, NBYTES, ACL_MEMCPY_DEVICE_TO_HOST, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtQueryEventStatus(event, &status));
    TRUE(status == ACL_EVENT_RECORDED_STATUS_COMPLETE);
    TRUE(((char *)host)[0] == 'e' && ((char *)host)[NBYTES - 1] == 'e');
    OK(aclrtFreeHost(host));
    OK(aclrtDestroyEvent(event));
    OK(aclrtDestroyStream(stream));
    OK(aclrtUnmapMem(address));
    OK(aclrtReleaseMemAddress(address));
    OK(aclrtFreePhysical(handle));
    send_all(socket, "!", 1);
    receive_all(socket, &done, 1);
    CHECK(aclrtIpcOpenEventHandle(message.event, &event), ACL_ERROR_RT_INVALID_HANDLE);
}

int main(void)
{
    int sockets[2], status = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        return 4;
    pid_t child = fork();
    close(sockets[!!child]);
    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));
    (child ? producer : consumer)(sockets[!child]);
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
    if (!child)
        return 0;
    waitpid(child, &status, 0);
    puts("waited");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 5;
}
