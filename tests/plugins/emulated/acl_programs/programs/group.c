/* SPDX-License-Identifier: Apache-2.0
 *
 * A process makes a memory group, and lets another one in, which allocates there.
 */
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "program.h"

enum { READ = 2, WRITE = 4, ALLOC = 8 };

static void maker(int socket, int32_t pid)
{
    /* Bigger than the vendor's structures, and without limits. */
    uint64_t config[32] = {0};
    uint32_t rights = READ | WRITE, all = READ | WRITE | ALLOC;
    char done;

    CHECK(rtMemGrpCreate(NULL, config), ACL_ERROR_INVALID_PARAM);
    CHECK(rtMemGrpCreate("", config), ACL_ERROR_RT_PARAM_INVALID);
    OK(rtMemGrpCreate("group", config));
    CHECK(rtMemGrpCreate("another", NULL), ACL_ERROR_RT_REPEATED_INIT);
    CHECK(rtMemGrpAddProc(NULL, pid, &rights), ACL_ERROR_INVALID_PARAM);
    CHECK(rtMemGrpAddProc("group", pid, NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(rtMemGrpAddProc("group", 0, &rights), ACL_ERROR_RT_PARAM_INVALID);
    CHECK(rtMemGrpAddProc("another", pid, &rights), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    receive_all(socket, &done, 1);
    OK(rtMemGrpAddProc("group", pid, &rights));
    send_all(socket, "!", 1);
    receive_all(socket, &done, 1);
    OK(rtMemGrpAddProc("group", pid, &all));
    send_all(socket, "!", 1);
}

static void member(int socket)
{
    acltdtBuf buffer = NULL;
    uint32_t qid = 0;
    char done;

    CHECK(acltdtCreateQueue(NULL, &qid), ACL_ERROR_FAILURE);
    send_all(socket, "!", 1);
    receive_all(socket, &done, 1);
    OK(acltdtCreateQueue(NULL, &qid));
    CHECK(acltdtAllocBuf(8, ACL_TDT_NORMAL_MEM, &buffer), ACL_ERROR_FAILURE);
    send_all(socket, "!", 1);
    receive_all(socket, &done, 1);
    OK(acltdtAllocBuf(8, ACL_TDT_NORMAL_MEM, &buffer));
    OK(acltdtFreeBuf(buffer));
    OK(acltdtDestroyQueue(qid));
}

int main(void)
{
    int sockets[2], status = 0;
    void *runtime = dlopen("libruntime.so", RTLD_NOW);

    /* Programs that make groups are linked with this name. */
    TRUE(runtime && dlsym(runtime, "rtMemGrpCreate") == (void *)rtMemGrpCreate);
    TRUE(!setenv("SHAREGROUP_PRECONFIG", "1", 1));
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        return 4;
    pid_t child = fork();
    close(sockets[!!child]);
    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));
    if (child)
        maker(sockets[0], child);
    else
        member(sockets[1]);
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
    if (!child)
        return 0;
    waitpid(child, &status, 0);
    puts("grouped");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 5;
}
