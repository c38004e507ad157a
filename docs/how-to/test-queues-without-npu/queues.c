/* A primary process hands buffers to three secondary processes through a queue. All are in one memory group. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "acl/acl.h"
#include "acl/acl_tdt_queue.h"

enum { SECONDARIES = 3, FRAMES = 30, NBYTES = 1024, LENGTH = 512, WAIT_MS = 5000, LAST = -1 };

/* Ends this process. The other processes end too, because their waits at the queue fail after WAIT_MS. */
static void give_up(const char *why, int code)
{
    const char *text = aclGetRecentErrMsg();
    fprintf(stderr, "%s: %d, %s\n", why, code, text ? text : "no text");
    exit(1);
}

#define CHECK(call)                                                               \
    do {                                                                          \
        aclError code = (call);                                                   \
        if (code != ACL_SUCCESS)                                                  \
            give_up(#call, code);                                                 \
    } while (0)

/* Enqueues one frame. The user data of its buffer is the number of the frame. */
static void hand_over(uint32_t qid, int32_t number)
{
    acltdtBuf buffer;
    void *data;
    size_t nbytes;

    CHECK(acltdtAllocBuf(NBYTES, ACL_TDT_NORMAL_MEM, &buffer));
    CHECK(acltdtGetBufData(buffer, &data, &nbytes));
    memset(data, number, LENGTH); /* allowed: the program runs on the device */
    CHECK(acltdtSetBufDataLen(buffer, LENGTH));
    CHECK(acltdtSetBufUserData(buffer, &number, sizeof number, 0));
    CHECK(acltdtEnqueue(qid, buffer, WAIT_MS)); /* the buffer now belongs to the queue */
}

static int32_t take(uint32_t qid)
{
    acltdtBuf buffer;
    void *data;
    size_t nbytes, length;
    int32_t number;

    CHECK(acltdtDequeue(qid, &buffer, WAIT_MS));
    CHECK(acltdtGetBufData(buffer, &data, &nbytes));
    CHECK(acltdtGetBufDataLen(buffer, &length));
    CHECK(acltdtGetBufUserData(buffer, &number, sizeof number, 0));
    if (length != LENGTH || ((signed char *)data)[LENGTH - 1] != number)
        give_up("wrong frame", 0);
    CHECK(acltdtFreeBuf(buffer));
    return number;
}

static void primary(const pid_t *pids, int pipe)
{
    uint32_t qid;

    CHECK(acltdtCreateQueue(NULL, &qid));
    for (int one = 0; one < SECONDARIES; ++one)
        CHECK(acltdtGrantQueue(qid, pids[one], ACL_TDT_QUEUE_PERMISSION_DEQUEUE, 0));
    /* All grants precede the first write: any secondary may read first, and it then needs its grant. */
    for (int one = 0; one < SECONDARIES; ++one)
        if (write(pipe, &qid, sizeof qid) != sizeof qid)
            give_up("no secondary", 0);
    for (int32_t number = 0; number < FRAMES; ++number)
        hand_over(qid, number);
    for (int one = 0; one < SECONDARIES; ++one)
        hand_over(qid, LAST);
    for (int one = 0; one < SECONDARIES; ++one) {
        int status;
        if (wait(&status) < 0 || status)
            give_up("a secondary failed", status);
    }
    CHECK(acltdtDestroyQueue(qid));
}

static void secondary(int pipe)
{
    uint32_t qid, permission;

    if (read(pipe, &qid, sizeof qid) != sizeof qid)
        give_up("no queue", 0);
    CHECK(acltdtAttachQueue(qid, 0, &permission)); /* succeeds only after the grant */
    while (take(qid) != LAST)
        ;
}

int main(void)
{
    int ends[2];
    pid_t pids[SECONDARIES], pid = -1;

    if (pipe(ends))
        return 4;
    for (int one = 0; one < SECONDARIES && pid; ++one)
        pids[one] = pid = fork(); /* before the first ACL call: a device does not survive a fork */
    close(ends[!pid]);
    CHECK(aclInit(NULL));
    CHECK(aclrtSetDevice(0));
    if (pid)
        primary(pids, ends[1]);
    else
        secondary(ends[0]);
    CHECK(aclrtResetDevice(0));
    CHECK(aclFinalize());
    if (pid)
        puts("handed over");
    return 0;
}
