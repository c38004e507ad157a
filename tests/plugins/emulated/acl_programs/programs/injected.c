/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls every function of queues and buffers, which are made to fail: injected COUNT
 *
 * Each line has a function, and what its COUNT calls answered: codes, or "null", or a number of
 * routes. A call that fails leaves its outputs as they are. Afterwards, everything works.
 */
#include "program.h"

enum { UNCHANGED = 77 };

#define EACH(text, call)                                                                       \
    do {                                                                                       \
        printf("%s", text);                                                                    \
        for (int round_ = 0; round_ < rounds; ++round_)                                        \
            printf(" %d", (int)(call));                                                        \
        puts("");                                                                              \
    } while (0)
#define CODES(function, ...) EACH(#function, function(__VA_ARGS__))
#define NULLS(function, ...) EACH(#function, function(__VA_ARGS__) == NULL)

static uint32_t id = UNCHANGED, bits = UNCHANGED;
static size_t size = UNCHANGED;
static char area[UNCHANGED];
static acltdtBuf buffer = area;
static void *pointer = area;

static void fail(int rounds)
{
    /* Nothing is looked up before the fault. */
    acltdtQueueAttr *attr = (acltdtQueueAttr *)area;
    acltdtQueueRoute *route = (acltdtQueueRoute *)area;
    acltdtQueueRouteList *list = (acltdtQueueRouteList *)area;
    acltdtQueueRouteQueryInfo *info = (acltdtQueueRouteQueryInfo *)area;
    uint32_t rights = 15;

    NULLS(acltdtCreateQueueAttr, );
    CODES(acltdtDestroyQueueAttr, attr);
    CODES(acltdtSetQueueAttr, attr, ACL_TDT_QUEUE_DEPTH_UINT32, 4, area);
    CODES(acltdtGetQueueAttr, attr, ACL_TDT_QUEUE_DEPTH_UINT32, 4, &size, area);
    CODES(acltdtCreateQueue, NULL, &id);
    CODES(acltdtDestroyQueue, 0);
    CODES(acltdtEnqueue, 0, area, 0);
    CODES(acltdtDequeue, 0, &buffer, 0);
    CODES(acltdtEnqueueData, 0, area, 1, NULL, 0, 0, 0);
    CODES(acltdtDequeueData, 0, area, 1, &size, NULL, 0, 0);
    CODES(acltdtGrantQueue, 0, getpid(), 7, 0);
    CODES(acltdtAttachQueue, 0, 0, &bits);
    CODES(acltdtBindQueueRoutes, list);
    CODES(acltdtUnbindQueueRoutes, list);
    CODES(acltdtQueryQueueRoutes, info, list);
    NULLS(acltdtCreateQueueRoute, 0, 1);
    CODES(acltdtDestroyQueueRoute, route);
    CODES(acltdtGetQueueRouteParam, route, ACL_TDT_QUEUE_ROUTE_SRC_UINT32, 4, &size, area);
    NULLS(acltdtCreateQueueRouteList, );
    CODES(acltdtDestroyQueueRouteList, list);
    CODES(acltdtAddQueueRoute, list, route);
    CODES(acltdtGetQueueRoute, list, 0, route);
    CODES(acltdtGetQueueRouteNum, list);
    NULLS(acltdtCreateQueueRouteQueryInfo, );
    CODES(acltdtDestroyQueueRouteQueryInfo, info);
    CODES(acltdtSetQueueRouteQueryInfo, info, ACL_TDT_QUEUE_ROUTE_QUERY_MODE_ENUM, 4, area);
    CODES(acltdtAllocBuf, 8, ACL_TDT_NORMAL_MEM, &buffer);
    CODES(acltdtFreeBuf, area);
    CODES(acltdtGetBufData, area, &pointer, &size);
    CODES(acltdtSetBufDataLen, area, 1);
    CODES(acltdtGetBufDataLen, area, &size);
    CODES(acltdtSetBufUserData, area, area, 1, 0);
    CODES(acltdtGetBufUserData, area, area, 1, 0);
    CODES(acltdtCopyBufRef, area, &buffer);
    CODES(acltdtAppendBufChain, area, area);
    CODES(acltdtGetBufChainNum, area, &id);
    CODES(acltdtGetBufFromChain, area, 0, &buffer);
    CODES(rtMemGrpCreate, "group", NULL);
    CODES(rtMemGrpAddProc, "group", getpid(), &rights);

    TRUE(id == UNCHANGED && bits == UNCHANGED && size == UNCHANGED);
    TRUE(buffer == area && pointer == area && !area[0]);
}

static void work(void)
{
    OK(acltdtCreateQueue(NULL, &id));
    TRUE(id == 0);
    OK(acltdtAllocBuf(8, ACL_TDT_NORMAL_MEM, &buffer));
    OK(acltdtEnqueue(id, buffer, 0));
    OK(acltdtDequeue(id, &buffer, 0));
    OK(acltdtFreeBuf(buffer));
    OK(acltdtDestroyQueue(id));
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 4;
    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));
    fail(atoi(arguments[1]));
    work();
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
    return 0;
}
