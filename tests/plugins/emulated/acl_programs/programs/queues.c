/* SPDX-License-Identifier: Apache-2.0
 *
 * Queues, buffers and routes of one process: queues HOST
 *
 * HOST  1 for a program on the host, which has queues of data alone, else 0
 */
#include <pthread.h>

#include "program.h"

enum { CAPACITY = 300, LENGTH = 200, DEPTH = 3 };

static uint32_t new_queue(void)
{
    static const char *const name = "frames";
    const char *found = NULL;
    uint32_t depth = DEPTH, qid = 4096;
    size_t nbytes = 0;
    acltdtQueueAttr *attr = acltdtCreateQueueAttr();

    TRUE(attr != NULL);
    CHECK(acltdtSetQueueAttr(NULL, ACL_TDT_QUEUE_NAME_PTR, sizeof name, &name),
          ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtSetQueueAttr(attr, ACL_TDT_QUEUE_NAME_PTR, sizeof name, NULL),
          ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtSetQueueAttr(attr, (acltdtQueueAttrType)-1, sizeof depth, &depth),
          ACL_ERROR_INVALID_PARAM);
    OK(acltdtSetQueueAttr(attr, ACL_TDT_QUEUE_NAME_PTR, sizeof name, &name));
    OK(acltdtSetQueueAttr(attr, ACL_TDT_QUEUE_DEPTH_UINT32, sizeof depth, &depth));
    CHECK(acltdtGetQueueAttr(attr, ACL_TDT_QUEUE_NAME_PTR, sizeof found, NULL, &found),
          ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtGetQueueAttr(attr, ACL_TDT_QUEUE_NAME_PTR, 4, &nbytes, &found),
          ACL_ERROR_INVALID_PARAM);
    OK(acltdtGetQueueAttr(attr, ACL_TDT_QUEUE_NAME_PTR, sizeof found, &nbytes, &found));
    TRUE(nbytes == sizeof found && !strcmp(found, name));
    OK(acltdtGetQueueAttr(attr, ACL_TDT_QUEUE_DEPTH_UINT32, sizeof depth, &nbytes, &depth));
    TRUE(nbytes == sizeof depth && depth == DEPTH);
    CHECK(acltdtCreateQueue(attr, NULL), ACL_ERROR_INVALID_PARAM);
    OK(acltdtCreateQueue(attr, &qid));
    TRUE(qid < 4096);
    OK(acltdtDestroyQueueAttr(attr));
    CHECK(acltdtDestroyQueueAttr(attr), ACL_ERROR_INVALID_PARAM);
    return qid;
}

static void data(uint32_t qid)
{
    char source[LENGTH] = "data", target[LENGTH] = "", user[96] = "user", found[96] = "";
    size_t size = 1;

    CHECK(acltdtEnqueueData(qid, NULL, LENGTH, NULL, 0, 0, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtEnqueueData(qid, source, LENGTH, NULL, 1, 0, 0), ACL_ERROR_RT_PARAM_INVALID);
    CHECK(acltdtDequeueData(qid, target, LENGTH, NULL, NULL, 0, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtDequeueData(qid, target, LENGTH, &size, NULL, 0, 0), ACL_ERROR_RT_QUEUE_EMPTY);
    TRUE(size == 1);
    for (int number = 1; number < DEPTH; ++number)
        OK(acltdtEnqueueData(qid, source, LENGTH, user, sizeof user, 0, 0));
    CHECK(acltdtEnqueueData(qid, source, LENGTH, NULL, 0, 10, 0), ACL_ERROR_RT_QUEUE_FULL);
    /* The true size is told, and the element stays. */
    CHECK(acltdtDequeueData(qid, target, 2, &size, NULL, 0, 0), ACL_ERROR_RT_PARAM_INVALID);
    TRUE(size == LENGTH && !target[0]);
    for (int number = 1; number < DEPTH; ++number) {
        OK(acltdtDequeueData(qid, target, LENGTH, &size, found, sizeof found, -1));
        TRUE(size == LENGTH && !memcmp(source, target, LENGTH));
        TRUE(!memcmp(user, found, sizeof user));
    }
}

/* Routes both elements of a source to two targets. */
static void routes(uint32_t source)
{
    uint32_t targets[2] = {new_queue(), new_queue()}, mode = ACL_TDT_QUEUE_ROUTE_QUERY_SRC;
    acltdtQueueRouteList *list = acltdtCreateQueueRouteList();
    acltdtQueueRouteQueryInfo *info = acltdtCreateQueueRouteQueryInfo();
    acltdtQueueRoute *route;
    int32_t status = -1;
    size_t size = 0;
    char byte = 'r';

    TRUE(list && info && acltdtGetQueueRouteNum(NULL) == 0);
    for (int number = 0; number < 2; ++number) {
        route = acltdtCreateQueueRoute(source, targets[number]);
        TRUE(route != NULL);
        OK(acltdtAddQueueRoute(list, route));
        OK(acltdtDestroyQueueRoute(route));
    }
    CHECK(acltdtAddQueueRoute(list, NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtDestroyQueueRoute(NULL), ACL_ERROR_INVALID_PARAM);
    OK(acltdtSetQueueRouteQueryInfo(info, ACL_TDT_QUEUE_ROUTE_QUERY_MODE_ENUM, sizeof mode, &mode));
    CHECK(acltdtQueryQueueRoutes(info, list), ACL_ERROR_INVALID_PARAM);
    TRUE(acltdtGetQueueRouteNum(list) == 0);
    for (int number = 0; number < 2; ++number) {
        route = acltdtCreateQueueRoute(source, targets[number]);
        OK(acltdtAddQueueRoute(list, route));
        OK(acltdtDestroyQueueRoute(route));
    }
    OK(acltdtSetQueueRouteQueryInfo(info, ACL_TDT_QUEUE_ROUTE_QUERY_SRC_ID_UINT32, sizeof source,
                                    &source));
    CHECK(acltdtUnbindQueueRoutes(list), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    CHECK(acltdtBindQueueRoutes(NULL), ACL_ERROR_INVALID_PARAM);
    OK(acltdtBindQueueRoutes(list));
    CHECK(acltdtDestroyQueue(source), ACL_ERROR_FAILURE);
    OK(acltdtQueryQueueRoutes(info, list));
    TRUE(acltdtGetQueueRouteNum(list) == 2);

    route = acltdtCreateQueueRoute(0, 0);
    CHECK(acltdtGetQueueRoute(list, 2, route), ACL_ERROR_INVALID_PARAM);
    OK(acltdtGetQueueRoute(list, 1, route));
    OK(acltdtGetQueueRouteParam(route, ACL_TDT_QUEUE_ROUTE_STATUS_INT32, 4, &size, &status));
    TRUE(size == 4 && status == ACL_TDT_QUEUE_ROUTE_BIND);
    OK(acltdtGetQueueRouteParam(route, ACL_TDT_QUEUE_ROUTE_DST_UINT32, 4, &size, &status));
    TRUE((uint32_t)status == targets[1]);
    OK(acltdtDestroyQueueRoute(route));

    OK(acltdtEnqueueData(source, &byte, 1, NULL, 0, 0, 0));
    for (int number = 0; number < 2; ++number) {
        char found = 0;
        OK(acltdtDequeueData(targets[number], &found, 1, &size, NULL, 0, 0));
        TRUE(found == byte);
    }
    OK(acltdtUnbindQueueRoutes(list));
    OK(acltdtDestroyQueueRouteList(list));
    OK(acltdtDestroyQueueRouteQueryInfo(info));
    OK(acltdtDestroyQueue(targets[0]));
    OK(acltdtDestroyQueue(targets[1]));
}

static void nothing_on_the_host(uint32_t qid)
{
    acltdtBuf buffer = NULL;
    uint32_t bits = 0;

    CHECK(acltdtAllocBuf(8, 2, &buffer), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtAllocBuf(8, ACL_TDT_NORMAL_MEM, &buffer), ACL_ERROR_FEATURE_UNSUPPORTED);
    CHECK(acltdtFreeBuf(&bits), ACL_ERROR_FEATURE_UNSUPPORTED);
    CHECK(acltdtEnqueue(qid, &bits, 0), ACL_ERROR_FEATURE_UNSUPPORTED);
    CHECK(acltdtDequeue(qid, &buffer, 0), ACL_ERROR_FEATURE_UNSUPPORTED);
    CHECK(acltdtGrantQueue(qid, getpid(), 7, 0), ACL_ERROR_FEATURE_UNSUPPORTED);
    CHECK(acltdtAttachQueue(qid, 0, &bits), ACL_ERROR_FEATURE_UNSUPPORTED);
}

static void *wait_for_a_buffer(void *argument)
{
    acltdtBuf found = NULL;
    OK(acltdtDequeue(*(uint32_t *)argument, &found, -1));
    return found;
}

/* A thread waits in its call while others make calls. */
static void threads(uint32_t qid)
{
    acltdtBuf buffer = NULL;
    void *found = NULL;
    pthread_t thread;

    TRUE(!pthread_create(&thread, NULL, wait_for_a_buffer, &qid));
    usleep(50000);
    OK(acltdtAllocBuf(8, ACL_TDT_NORMAL_MEM, &buffer));
    OK(acltdtEnqueue(qid, buffer, 0));
    TRUE(!pthread_join(thread, &found) && found);
    OK(acltdtFreeBuf(found));
}

static void null_buffers(void)
{
    acltdtBuf buffer = NULL;
    void *pointer = NULL;
    char byte = 0;
    size_t size = 0;
    uint32_t number = 0;

    CHECK(acltdtAllocBuf(8, ACL_TDT_NORMAL_MEM, NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtFreeBuf(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtGetBufData(NULL, &pointer, &size), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtGetBufData(&byte, NULL, &size), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtSetBufDataLen(NULL, 1), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtGetBufDataLen(&byte, NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtSetBufUserData(NULL, &byte, 1, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtGetBufUserData(&byte, NULL, 1, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtCopyBufRef(NULL, &buffer), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtAppendBufChain(&byte, NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtGetBufChainNum(NULL, &number), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtGetBufFromChain(&byte, 0, NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtEnqueue(0, NULL, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtDequeue(0, NULL, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(acltdtAttachQueue(0, 0, NULL), ACL_ERROR_INVALID_PARAM);
}

static void buffers(uint32_t qid)
{
    acltdtBuf first = NULL, second = NULL, old, member = NULL, more[DEPTH];
    void *pointer = NULL;
    size_t size = 0;
    uint32_t number = 0;
    char user[96] = "user", found[96] = "";

    null_buffers();
    OK(acltdtAllocBuf(CAPACITY, ACL_TDT_NORMAL_MEM, &first));
    OK(acltdtGetBufData(first, &pointer, &size));
    TRUE(size == CAPACITY);
    memset(pointer, 'f', CAPACITY);
    OK(acltdtGetBufDataLen(first, &size));
    TRUE(size == 0);
    CHECK(acltdtSetBufDataLen(first, CAPACITY + 1), ACL_ERROR_RT_PARAM_INVALID);
    OK(acltdtSetBufDataLen(first, LENGTH));
    CHECK(acltdtSetBufUserData(first, user, sizeof user, 1), ACL_ERROR_INVALID_PARAM);
    OK(acltdtSetBufUserData(first, user, sizeof user, 0));

    OK(acltdtCopyBufRef(first, &second));
    TRUE(second != first);
    OK(acltdtAppendBufChain(first, second));
    OK(acltdtGetBufChainNum(first, &number));
    TRUE(number == 2);
    OK(acltdtGetBufFromChain(first, 1, &member));
    TRUE(member == second);
    CHECK(acltdtGetBufFromChain(first, 2, &member), ACL_ERROR_RT_DRV_INTERNAL_ERROR);

    old = first;
    OK(acltdtEnqueue(qid, first, 0));
    CHECK(acltdtFreeBuf(old), ACL_ERROR_RT_PARAM_INVALID);
    OK(acltdtDequeue(qid, &first, 0));
    TRUE(first != old);
    CHECK(acltdtDequeue(qid, &member, 0), ACL_ERROR_FAILURE);
    OK(acltdtGetBufData(first, &pointer, &size));
    TRUE(size == CAPACITY && ((char *)pointer)[CAPACITY - 1] == 'f');
    OK(acltdtGetBufDataLen(first, &size));
    TRUE(size == LENGTH);
    OK(acltdtGetBufUserData(first, found, sizeof found, 0));
    TRUE(!memcmp(user, found, sizeof user));
    OK(acltdtFreeBuf(first));

    for (int one = 0; one < DEPTH; ++one)
        OK(acltdtAllocBuf(1, ACL_TDT_NORMAL_MEM, &more[one]));
    for (int one = 0; one < DEPTH - 1; ++one)
        OK(acltdtEnqueue(qid, more[one], 0));
    /* Documented otherwise: a full queue of buffers has a code of its own. */
    CHECK(acltdtEnqueue(qid, more[DEPTH - 1], 10), ACL_ERROR_FAILURE);
    OK(acltdtFreeBuf(more[DEPTH - 1]));
    CHECK(acltdtGrantQueue(qid, getpid(), 7, 0), ACL_ERROR_FEATURE_UNSUPPORTED);
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 4;
    int is_on_host = atoi(arguments[1]);
    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));
    uint32_t qid = new_queue();
    data(qid);
    routes(qid);
    if (is_on_host) {
        nothing_on_the_host(qid);
    } else {
        threads(qid);
        buffers(qid);
    }
    OK(acltdtDestroyQueue(qid));
    OK(acltdtDestroyQueue(qid));
    CHECK(acltdtDestroyQueue(4096), ACL_ERROR_RT_PARAM_INVALID);
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
    puts("queued");
    return 0;
}
