/* SPDX-License-Identifier: Apache-2.0
 *
 * A server that lends memory to clients, which are other programs: handles and a descriptor come
 * in one message of a socket with a name. One client dies with the memory in use; the last one
 * outlives the server.
 */
#include <sys/socket.h>
#include <sys/un.h>

#include "hip.h"

enum { SIZE = 1 << 20, ONE_DESCRIPTOR = CMSG_SPACE(sizeof(int)) };

/* ROCm 5 has no virtual memory, and says so. */
static const int has_virtual = ROCM > 5;

struct lent {
    hipIpcMemHandle_t memory;
    hipIpcEventHandle_t event;
    size_t size;
};

static struct sockaddr_un address_of(const char *path)
{
    struct sockaddr_un address;

    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    return address;
}

static struct msghdr message_of(struct iovec *part, char *room)
{
    struct msghdr message;

    memset(&message, 0, sizeof message);
    memset(room, 0, ONE_DESCRIPTOR);
    message.msg_iov = part;
    message.msg_iovlen = 1;
    if (has_virtual) {
        message.msg_control = room;
        message.msg_controllen = ONE_DESCRIPTOR;
    }
    return message;
}

/* Client ------------------------------------------------------------------------------------ */

static void *mapped(int descriptor, size_t size)
{
    hipMemGenericAllocationHandle_t handle;
    hipMemAccessDesc access;
    void *pointer = NULL;

    memset(&access, 0, sizeof access);
    access.location.type = hipMemLocationTypeDevice;
    access.flags = hipMemAccessFlagsProtReadWrite;
    ANSWERS(0, hipMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor,
                                               hipMemHandleTypePosixFileDescriptor));
    close(descriptor);
    ANSWERS(0, hipMemAddressReserve(&pointer, size, 0, NULL, 0));
    ANSWERS(0, hipMemMap(pointer, size, 0, handle, 0));
    ANSWERS(0, hipMemRelease(handle));
    ANSWERS(0, hipMemSetAccess(pointer, size, &access, 1));
    return pointer;
}

static void client(const char *path, int number, int last)
{
    struct sockaddr_un address = address_of(path);
    int server = socket(AF_UNIX, SOCK_SEQPACKET, 0), descriptor = -1, found = 0;
    char room[ONE_DESCRIPTOR];
    struct lent lent;
    struct iovec part = {&lent, sizeof lent};
    struct msghdr message = message_of(&part, room);
    void *memory = NULL, *more = NULL;
    hipEvent_t event;

    HOLDS(!connect(server, (struct sockaddr *)&address, sizeof address));
    HOLDS(recvmsg(server, &message, 0) == sizeof lent);
    ANSWERS(0, hipIpcOpenMemHandle(&memory, lent.memory, LAZY));
    ANSWERS(0, hipIpcOpenEventHandle(&event, lent.event));
    ANSWERS(0, hipEventSynchronize(event));
    ANSWERS(0, hipMemcpy(&found, memory, sizeof found, hipMemcpyDeviceToHost));
    HOLDS(found == number);
    found++;
    ANSWERS(0, hipMemcpy(memory, &found, sizeof found, hipMemcpyHostToDevice));
    if (has_virtual) {
        memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
        more = mapped(descriptor, lent.size);
        ANSWERS(0, hipMemcpy(&found, more, sizeof found, hipMemcpyDeviceToHost));
        HOLDS(found == 77);
    }
    fflush(stdout);
    send_bytes(server, "x", 1);
    if (number == 0)
        raise(SIGKILL);
    if (number == last) {
        /* The end of the server is the end of the connection. Its descriptor keeps the memory. */
        HOLDS(read(server, room, 1) == 0);
        if (has_virtual)
            ANSWERS(0, hipMemcpy(&found, more, sizeof found, hipMemcpyDeviceToHost));
    } else {
        ANSWERS(0, hipIpcCloseMemHandle(memory));
        ANSWERS(0, hipEventDestroy(event));
    }
    if (has_virtual) {
        ANSWERS(0, hipMemUnmap(more, lent.size));
        ANSWERS(0, hipMemAddressFree(more, lent.size));
    }
    finish();
}

/* Server ------------------------------------------------------------------------------------ */

static int shareable(size_t *size, hipMemGenericAllocationHandle_t *handle)
{
    hipMemAllocationProp properties;
    int descriptor = -1;

    memset(&properties, 0, sizeof properties);
    properties.type = hipMemAllocationTypePinned;
    properties.requestedHandleType = hipMemHandleTypePosixFileDescriptor;
    properties.location.type = hipMemLocationTypeDevice;
    if (!has_virtual) {
        ANSWERS(801, hipMemCreate(handle, SIZE, &properties, 0));
        return -1;
    }
    ANSWERS(0, hipMemGetAllocationGranularity(size, &properties,
                                              hipMemAllocationGranularityMinimum));
    ANSWERS(0, hipMemCreate(handle, *size, &properties, 0));
    ANSWERS(0, hipMemExportToShareableHandle(&descriptor, *handle,
                                             hipMemHandleTypePosixFileDescriptor, 0));
    return descriptor;
}

static void serve(int listener, int clients)
{
    hipMemGenericAllocationHandle_t handle;
    struct lent lent;
    int descriptor = shareable(&lent.size, &handle), number = 0, mark = 77;
    void *memory = NULL, *more = NULL;
    hipEvent_t event;
    char room[ONE_DESCRIPTOR];
    struct iovec part = {&lent, sizeof lent};

    ANSWERS(0, hipMalloc(&memory, SIZE));
    ANSWERS(0, hipEventCreateWithFlags(&event, hipEventDisableTiming | hipEventInterprocess));
    ANSWERS(0, hipMemcpy(memory, &number, sizeof number, hipMemcpyHostToDevice));
    ANSWERS(0, hipEventRecord(event, NULL));
    ANSWERS(0, hipIpcGetMemHandle(&lent.memory, memory));
    ANSWERS(0, hipIpcGetEventHandle(&lent.event, event));
    if (has_virtual) {
        more = mapped(dup(descriptor), lent.size);
        ANSWERS(0, hipMemcpy(more, &mark, sizeof mark, hipMemcpyHostToDevice));
    }
    for (int i = 0; i < clients; i++) {
        struct msghdr message = message_of(&part, room);
        struct cmsghdr *control = CMSG_FIRSTHDR(&message);
        int peer = accept(listener, NULL, NULL);
        char byte = 0;

        if (control) {
            control->cmsg_level = SOL_SOCKET;
            control->cmsg_type = SCM_RIGHTS;
            control->cmsg_len = CMSG_LEN(sizeof descriptor);
            memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
        }
        HOLDS(sendmsg(peer, &message, MSG_NOSIGNAL) == sizeof lent);
        HOLDS(read(peer, &byte, 1) == 1);
        ANSWERS(0, hipMemcpy(&number, memory, sizeof number, hipMemcpyDeviceToHost));
        HOLDS(number == i + 1);
        if (i < clients - 1)
            close(peer);
    }
    /* Nothing is given back here: a server may just end. */
    finish();
}

int main(int count, char **words)
{
    enum { CLIENTS = 3 };
    char path[64], number[8];
    struct sockaddr_un address;
    int listener, status = 0;
    pid_t server, peer;

    if (count == 3)
        client(words[1], atoi(words[2]), CLIENTS - 1);
    snprintf(path, sizeof path, "/tmp/crossmem-server-%d", (int)getpid());
    address = address_of(path);
    listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    HOLDS(!bind(listener, (struct sockaddr *)&address, sizeof address) && !listen(listener, CLIENTS));
    server = start();
    if (!server)
        serve(listener, CLIENTS);
    close(listener);
    for (int i = 0; i < CLIENTS; i++) {
        snprintf(number, sizeof number, "%d", i);
        peer = start();
        if (!peer) {
            execl(words[0], words[0], path, number, NULL);
            _exit(127);
        }
        if (i == 0)
            HOLDS(waitpid(peer, &status, 0) == peer && WIFSIGNALED(status));
        else
            wait_for(peer);
    }
    wait_for(server);
    unlink(path);
    finish();
}
