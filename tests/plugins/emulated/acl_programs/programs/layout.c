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

int main(void) { return 0; }
