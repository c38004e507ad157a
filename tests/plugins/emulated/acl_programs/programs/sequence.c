/* SPDX-License-Identifier: Apache-2.0
 *
 * The sequence of the vendor's page on shared buffers: sequence TYPE CALLS
 *
 * TYPE   0 for normal memory, 1 for that of DVPP, which today's edition of the page forbids
 * CALLS  1 with the two calls that the text demands and the sample leaves out, else 0
 */
#include "program.h"

enum { NBYTES = 1024, LENGTH = 512, USER_NBYTES = 96 };

int main(int count, char **arguments)
{
    if (count != 3)
        return 4;
    uint32_t type = (uint32_t)atoi(arguments[1]);
    int has_calls = atoi(arguments[2]);
    acltdtBuf buffer = NULL;
    void *data = NULL;
    size_t nbytes = 0, length = NBYTES;
    char source[LENGTH], user[USER_NBYTES] = "", found[USER_NBYTES];

    memset(source, 's', sizeof source);
    strcpy(user, "user data");
    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));

    OK(acltdtAllocBuf(NBYTES, type, &buffer));
    OK(acltdtGetBufData(buffer, &data, &nbytes));
    TRUE(nbytes == NBYTES && (uintptr_t)data % 128 == 0);
    OK(aclrtMemcpy(data, nbytes, source, sizeof source, ACL_MEMCPY_HOST_TO_DEVICE));
    if (has_calls) {
        OK(acltdtSetBufDataLen(buffer, LENGTH));
        OK(acltdtSetBufUserData(buffer, user, sizeof user, 0));
    }

    OK(acltdtGetBufDataLen(buffer, &length));
    TRUE(length == (has_calls ? LENGTH : 0));
    if (has_calls) {
        OK(acltdtGetBufUserData(buffer, found, sizeof found, 0));
        TRUE(!memcmp(found, user, sizeof user));
    }
    memset(source, 0, sizeof source);
    OK(aclrtMemcpy(source, sizeof source, data, sizeof source, ACL_MEMCPY_DEVICE_TO_HOST));
    TRUE(source[0] == 's' && source[LENGTH - 1] == 's');

    OK(acltdtFreeBuf(buffer));
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
    puts("freed");
    return 0;
}
