/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual memory of one process, whose descriptor another one gets through a socket.
 */
#include <fcntl.h>
#include <sys/socket.h>

#include "hip.h"

enum { TEXT = 16 };

static const hipMemAllocationHandleType FD = hipMemHandleTypePosixFileDescriptor;

static void send_descriptor(int to, int descriptor)
{
    char byte = 'x', room[CMSG_SPACE(sizeof descriptor)] = "";
    struct iovec part = {&byte, 1};
    struct msghdr message;

    memset(&message, 0, sizeof message);
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
    HOLDS(sendmsg(to, &message, 0) == 1);
}

static int receive_descriptor(int from)
{
    int descriptor = -1;
    char byte, room[CMSG_SPACE(sizeof descriptor)] = "";
    struct iovec part = {&byte, 1};
    struct msghdr message;

    memset(&message, 0, sizeof message);
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    HOLDS(recvmsg(from, &message, 0) == 1);
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

static void *mapped(hipMemGenericAllocationHandle_t handle, size_t size)
{
    void *pointer = NULL;
    hipMemAccessDesc access;
    unsigned long long flags = 0;

    memset(&access, 0, sizeof access);
    access.location.type = hipMemLocationTypeDevice;
    access.flags = hipMemAccessFlagsProtReadWrite;
    ANSWERS(0, hipMemAddressReserve(&pointer, size, 0, NULL, 0));
    ANSWERS(1, hipMemMap(pointer, size, 8, handle, 0));
    ANSWERS(0, hipMemMap(pointer, size, 0, handle, 0));
    ANSWERS(1, hipMemSetAccess(pointer, size, NULL, 1));
    ANSWERS(0, hipMemSetAccess(pointer, size, &access, 1));
    ANSWERS(0, hipMemGetAccess(&flags, &access.location, pointer));
    HOLDS(flags == 3);
    return pointer;
}

static void unmap(void *pointer, size_t size)
{
    ANSWERS(0, hipMemUnmap(pointer, size));
    ANSWERS(0, hipMemAddressFree(pointer, size));
    ANSWERS(1, hipMemUnmap(pointer, size));
}

static void import_memory(int from, size_t size)
{
    hipMemGenericAllocationHandle_t first, second;
    int descriptor = receive_descriptor(from);
    char text[TEXT] = "";

    ANSWERS(1, hipMemImportFromShareableHandle(NULL, &descriptor, FD));
    ANSWERS(1, hipMemImportFromShareableHandle(&first, NULL, FD));
    /* As up to ROCm 6, and as since. */
    ANSWERS(0, hipMemImportFromShareableHandle(&first, &descriptor, FD));
    ANSWERS(0, hipMemImportFromShareableHandle(&second, (void *)(intptr_t)descriptor, FD));
    close(descriptor);
    ANSWERS(0, hipMemRelease(second));
    void *pointer = mapped(first, size);
    ANSWERS(0, hipMemRelease(first));
    ANSWERS(0, hipMemcpy(text, pointer, TEXT, hipMemcpyDeviceToHost));
    HOLDS(!strcmp(text, "from the parent"));
    ANSWERS(0, hipMemcpy(pointer, "from the child", TEXT, hipMemcpyHostToDevice));
    unmap(pointer, size);
}

int main(void)
{
    hipMemAllocationProp properties, found;
    hipMemGenericAllocationHandle_t handle;
    int pair[2], descriptor = -1;
    size_t size = 0;
    char text[TEXT] = "";

    HOLDS(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t child = start();
    /* Who waits for the other then sees it die. */
    close(pair[child ? 0 : 1]);
    if (!child) {
        receive_bytes(pair[0], &size, sizeof size);
        import_memory(pair[0], size);
        finish();
    }
    memset(&properties, 0, sizeof properties);
    memset(&found, 0xFF, sizeof found);
    properties.type = hipMemAllocationTypePinned;
    properties.requestedHandleType = FD;
    properties.location.type = hipMemLocationTypeDevice;
    ANSWERS(0, hipMemGetAllocationGranularity(&size, &properties,
                                              hipMemAllocationGranularityMinimum));
    HOLDS(size > 0);
    ANSWERS(1, hipMemCreate(&handle, size, NULL, 0));
    ANSWERS(1, hipMemCreate(NULL, size, &properties, 0));
    ANSWERS(1, hipMemCreate(&handle, 0, &properties, 0));
    ANSWERS(0, hipMemCreate(&handle, size, &properties, 0));
    ANSWERS(0, hipMemGetAllocationPropertiesFromHandle(&found, handle));
    HOLDS(found.type == properties.type && found.requestedHandleType == FD);
    HOLDS(found.location.type == properties.location.type && found.location.id == 0);
    HOLDS(!found.win32HandleMetaData);
    void *pointer = mapped(handle, size);
    ANSWERS(0, hipMemcpy(pointer, "from the parent", TEXT, hipMemcpyHostToDevice));
    ANSWERS(1, hipMemExportToShareableHandle(NULL, handle, FD, 0));
    ANSWERS(1, hipMemExportToShareableHandle(&descriptor, handle, FD, 1));
    ANSWERS(0, hipMemExportToShareableHandle(&descriptor, handle, FD, 0));
    HOLDS(fcntl(descriptor, F_SETFD, 0) == 0);
    pid_t heir = start();
    if (!heir) {
        /* What another program is to inherit is there. */
        HOLDS(fcntl(descriptor, F_GETFD) == 0);
        finish();
    }
    wait_for(heir);
    send_bytes(pair[1], &size, sizeof size);
    send_descriptor(pair[1], descriptor);
    close(descriptor);
    wait_for(child);
    ANSWERS(0, hipMemcpy(text, pointer, TEXT, hipMemcpyDeviceToHost));
    HOLDS(!strcmp(text, "from the child"));
    ANSWERS(0, hipMemRelease(handle));
    unmap(pointer, size);
    finish();
}
