/* SPDX-License-Identifier: Apache-2.0
 *
 * Members of a memory group, which a test tells what to do, line by line: member ROLE
 *
 * ROLE  primary: has a queue, whose id is its first line.
 *           "grant PID" lets a process take buffers, "feed VALUE NBYTES" hands one over, and "end"
 *           destroys the queue.
 *       secondaries: starts processes that take buffers and check them.
 *           "begin" starts one and answers its pid, "consume PID QID" lets it begin, and "kill PID"
 *           kills it and answers the signal that ended it, 0 for none.
 */
#include <signal.h>
#include <sys/wait.h>

#include "program.h"

enum { DEADLINE_MS = 100000, MOST = 16 };

struct member {
    pid_t pid;
    int pipe;
};

static struct member members[MOST];

static void answer(long number)
{
    printf("%ld\n", number);
    fflush(stdout);
}

/* A failed call of another process ends it, and the test reads no more answers. */
static void primary(void)
{
    char line[64], source[1024];
    unsigned qid_text, value, nbytes;
    int pid;
    uint32_t qid = 0;
    aclrtStream stream = NULL;

    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));
    OK(aclrtCreateStream(&stream));
    OK(acltdtCreateQueue(NULL, &qid));
    qid_text = qid;
    answer((long)qid_text);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "grant %d", &pid) == 1) {
            OK(acltdtGrantQueue(qid, pid, ACL_TDT_QUEUE_PERMISSION_DEQUEUE, 0));
        } else if (sscanf(line, "feed %u %u", &value, &nbytes) == 2) {
            acltdtBuf buffer = NULL;
            void *data = NULL;
            size_t size = 0;
            memset(source, (int)value, sizeof source);
            OK(acltdtAllocBuf(nbytes, ACL_TDT_NORMAL_MEM, &buffer));
            OK(acltdtGetBufData(buffer, &data, &size));
            OK(aclrtMemcpyAsync(data, size, source, nbytes, ACL_MEMCPY_HOST_TO_DEVICE, stream));
            OK(aclrtSynchronizeStream(stream));
            OK(acltdtSetBufDataLen(buffer, nbytes));
            OK(acltdtSetBufUserData(buffer, source, 1, 0));
            OK(acltdtEnqueue(qid, buffer, DEADLINE_MS));
        } else {
            break;
        }
        answer(0);
    }
    OK(acltdtDestroyQueue(qid));
    OK(aclrtDestroyStream(stream));
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
    answer(0);
}

static void consume(uint32_t qid)
{
    aclrtStream stream = NULL;
    uint32_t bits = 0;

    OK(aclrtSetDevice(0));
    OK(aclrtCreateStream(&stream));
    OK(acltdtAttachQueue(qid, 0, &bits));
    TRUE(bits == ACL_TDT_QUEUE_PERMISSION_DEQUEUE);
    for (;;) {
        acltdtBuf buffer = NULL;
        void *data = NULL;
        size_t size = 0, length = 0;
        char user = 0, found[1024];
        OK(acltdtDequeue(qid, &buffer, -1));
        OK(acltdtGetBufData(buffer, &data, &size));
        OK(acltdtGetBufDataLen(buffer, &length));
        OK(acltdtGetBufUserData(buffer, &user, 1, 0));
        TRUE(length && length <= sizeof found);
        OK(aclrtMemcpyAsync(found, sizeof found, data, length, ACL_MEMCPY_DEVICE_TO_HOST, stream));
        OK(aclrtSynchronizeStream(stream));
        for (size_t one = 0; one < length; ++one)
            TRUE(found[one] == user);
        OK(acltdtFreeBuf(buffer));
    }
}

static struct member *find(pid_t pid)
{
    for (int one = 0; one < MOST; ++one)
        if (members[one].pid == pid)
            return &members[one];
    exit(6);
}

static void begin(void)
{
    struct member *made = find(0);
    int ends[2];
    uint32_t qid;
    TRUE(!pipe(ends));
    made->pid = fork();
    if (!made->pid) {
        close(ends[1]);
        receive_all(ends[0], &qid, sizeof qid);
        consume(qid);
    }
    close(ends[0]);
    made->pipe = ends[1];
    answer(made->pid);
}

static void end(struct member *victim)
{
    int status = 0;
    kill(victim->pid, SIGKILL);
    TRUE(waitpid(victim->pid, &status, 0) == victim->pid);
    close(victim->pipe);
    victim->pid = 0;
    answer(WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void secondaries(void)
{
    char line[64];
    unsigned qid;
    int pid;

    /* The children need not start Python. No device is open, so they may open one. */
    OK(aclInit(NULL));
    answer(0);
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "begin\n")) {
            begin();
        } else if (sscanf(line, "consume %d %u", &pid, &qid) == 2) {
            uint32_t number = qid;
            send_all(find(pid)->pipe, &number, sizeof number);
            answer(0);
        } else if (sscanf(line, "kill %d", &pid) == 1) {
            end(find(pid));
        }
    }
    OK(aclFinalize());
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 4;
    if (!strcmp(arguments[1], "primary"))
        primary();
    else
        secondaries();
    return 0;
}
