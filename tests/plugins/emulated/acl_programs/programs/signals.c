/* SPDX-License-Identifier: Apache-2.0
 *
 * The signals of the program stay as they are, so Ctrl-C ends it.
 */
#include <signal.h>

#include "program.h"

int main(void)
{
    uint32_t queue;

    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));
    OK(acltdtCreateQueue(NULL, &queue));
    TRUE(signal(SIGINT, SIG_DFL) == SIG_DFL);
    TRUE(signal(SIGPIPE, SIG_DFL) == SIG_DFL);
    raise(SIGINT);
    return 1;
}
