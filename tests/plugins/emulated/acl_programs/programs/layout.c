/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes and offsets that programs are compiled for. Compiling it is the test.
 */
#include "program.h"

#ifdef VENDOR_HEADERS
/* This project's declarations of functions say the same as the vendor's. */
#include "functions.h"
#endif

#define SIZE(type, nbytes) _Static_assert(sizeof(type) == (nbytes), #type)
#define IS(constant, value) _Static_assert((constant) == (value), #constant)
#define AT(type, member, place) _Static_assert(offsetof(type, member) == (place), #type "." #member)

SIZE(aclrtMemLocation, 8);
AT(aclrtMemLocation, id, 0);
AT(aclrtMemLocation, type, 4);
SIZE(aclrtPhysicalMemProp, 32);
AT(aclrtPhysicalMemProp, handleType, 0);
AT(aclrtPhysicalMemProp, allocationType, 4);
AT(aclrtPhysicalMemProp, memAttr, 8);
AT(aclrtPhysicalMemProp, location, 12);
AT(aclrtPhysicalMemProp, reserve, 24);
SIZE(aclrtMemAccessDesc, 24);
AT(aclrtMemAccessDesc, flags, 0);
AT(aclrtMemAccessDesc, location, 4);
AT(aclrtMemAccessDesc, rsv, 12);
SIZE(aclrtMemcpyBatchAttr, 32);
AT(aclrtMemcpyBatchAttr, dstLoc, 0);
AT(aclrtMemcpyBatchAttr, srcLoc, 8);
SIZE(aclrtMemFabricHandle, 128);
SIZE(aclrtServerPid, 24);
AT(aclrtServerPid, sdid, 0);
AT(aclrtServerPid, pid, 8);
AT(aclrtServerPid, num, 16);
SIZE(aclrtPtrAttributes, 28);
AT(aclrtPtrAttributes, location, 0);
AT(aclrtPtrAttributes, pageSize, 8);
AT(aclrtPtrAttributes, rsv, 12);
SIZE(aclrtUuid, 16);
SIZE(aclrtIpcEventHandle, 64);
SIZE(aclrtMallocAttribute, 12);
AT(aclrtMallocAttribute, attr, 0);
AT(aclrtMallocAttribute, value, 4);
SIZE(aclrtMallocConfig, 16);
AT(aclrtMallocConfig, attrs, 0);
AT(aclrtMallocConfig, numAttrs, 8);
SIZE(aclrtStreamAttrValue, 16);
SIZE(aclError, 4);
SIZE(aclFloat16, 2);
SIZE(aclrtMemcpyKind, 4);
SIZE(aclrtMemMallocPolicy, 4);
SIZE(aclrtMemSharedHandleType, 4);
SIZE(acltdtBuf, 8);
SIZE(acltdtQueueAttrType, 4);
SIZE(acltdtQueueRouteParamType, 4);
SIZE(acltdtQueueRouteQueryInfoParamType, 4);
IS(ACL_TDT_NORMAL_MEM, 0);
IS(ACL_TDT_DVPP_MEM, 1);
IS(ACL_TDT_QUEUE_NAME_PTR, 0);
IS(ACL_TDT_QUEUE_DEPTH_UINT32, 1);
IS(ACL_TDT_QUEUE_PERMISSION_MANAGE, 1);
IS(ACL_TDT_QUEUE_PERMISSION_DEQUEUE, 2);
IS(ACL_TDT_QUEUE_PERMISSION_ENQUEUE, 4);
IS(ACL_TDT_QUEUE_ROUTE_UNBIND, 0);
IS(ACL_TDT_QUEUE_ROUTE_BIND, 1);
IS(ACL_TDT_QUEUE_ROUTE_BIND_ABNORMAL, 2);
IS(ACL_TDT_QUEUE_ROUTE_SRC_UINT32, 0);
IS(ACL_TDT_QUEUE_ROUTE_DST_UINT32, 1);
IS(ACL_TDT_QUEUE_ROUTE_STATUS_INT32, 2);
IS(ACL_TDT_QUEUE_ROUTE_QUERY_SRC, 0);
IS(ACL_TDT_QUEUE_ROUTE_QUERY_DST, 1);
IS(ACL_TDT_QUEUE_ROUTE_QUERY_SRC_AND_DST, 2);
IS(ACL_TDT_QUEUE_ROUTE_QUERY_ABNORMAL, 100);
IS(ACL_TDT_QUEUE_ROUTE_QUERY_MODE_ENUM, 0);
IS(ACL_TDT_QUEUE_ROUTE_QUERY_SRC_ID_UINT32, 1);
IS(ACL_TDT_QUEUE_ROUTE_QUERY_DST_ID_UINT32, 2);
IS(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, 207005);
IS(ACL_ERROR_RT_OVER_LIMIT, 207012);
IS(ACL_ERROR_RT_QUEUE_EMPTY, 207013);
IS(ACL_ERROR_RT_QUEUE_FULL, 207014);
IS(ACL_ERROR_RT_REPEATED_INIT, 207015);

int main(void) { return 0; }
