/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream of one process waits for a notify of its own that another process records, and for a
 * value in memory that both have registered.
 */
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "program.h"

enum { NBYTES = 4096, KEY_LENGTH = 65, AT_LEAST = 0, EQUAL = 1 };

static uint64_t *words;

static uint64_t *registered(void)
{
    void *found = NULL;

    OK(aclrtHostRegister(words, NBYTES, ACL_HOST_REGISTER_MAPPED, &found));
    return (uint64_t *)found;
}

static void waiter(int socket)
{
    uint64_t *own = registered();
    aclrtNotify notify = NULL;
    aclrtStream stream = NULL;
    char key[KEY_LENGTH], done;
    int32_t status = 0, peer = 0;
    uint32_t number = 0;

    OK(aclrtCreateStream(&stream));
    CHECK(aclrtCreateNotify(&notify, 7), ACL_ERROR_RT_PARAM_INVALID);
    CHECK(aclrtCreateNotify(NULL, 0), ACL_ERROR_INVALID_PARAM);
    OK(aclrtCreateNotify(&notify, 0));
    OK(aclrtGetNotifyId(notify, &number));
    CHECK(aclrtNotifyGetExportKey(notify, NULL, sizeof key, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtNotifyGetExportKey(notify, key, 64, 0), ACL_ERROR_RT_PARAM_INVALID);
    OK(aclrtNotifyGetExportKey(notify, key, sizeof key, 0));
    receive_all(socket, &peer, sizeof peer);
    CHECK(aclrtNotifySetImportPid(notify, &peer, 0), ACL_ERROR_RT_PARAM_INVALID);
    OK(aclrtNotifySetImportPid(notify, &peer, 1));
    OK(aclrtWaitAndResetNotify(notify, stream, 0));
    OK(aclrtValueWait(own, 5, AT_LEAST, stream));
    OK(aclrtValueWrite(own + 1, 6, 0, stream));
    OK(aclrtStreamQuery(stream, (aclrtStreamStatus *)&status));
    TRUE(status != 0);
    send_all(socket, key, sizeof key);
    OK(aclrtSynchronizeStream(stream));
    TRUE(words[0] == 5 && words[1] == 6);
    OK(aclrtDestroyNotify(notify));
    OK(aclrtDestroyStream(stream));
    CHECK(aclrtValueWait(NULL, 5, AT_LEAST, NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtValueWrite((char *)own + 4, 5, 0, NULL), ACL_ERROR_RT_PARAM_INVALID);
    OK(aclrtHostUnregister(words));
    send_all(socket, "!", 1);
    receive_all(socket, &done, 1);
}

static void recorder(int socket)
{
    uint64_t *own = registered();
    aclrtNotify notify = NULL;
    aclrtStream stream = NULL;
    char key[KEY_LENGTH], done;
    int32_t me = 0;

    OK(aclrtDeviceGetBareTgid(&me));
    send_all(socket, &me, sizeof me);
    receive_all(socket, key, sizeof key);
    OK(aclrtNotifyImportByKey(&notify, key, 0));
    OK(aclrtCreateStream(&stream));
    OK(aclrtRecordNotify(notify, stream));
    OK(aclrtValueWrite(own, 5, 0, stream));
    OK(aclrtValueWait(own + 1, 6, EQUAL, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtDestroyNotify(notify));
    OK(aclrtDestroyStream(stream));
    OK(aclrtHostUnregister(words));
    receive_all(socket, &done, 1);
    send_all(socket, "!", 1);
}

int main(void)
{
    int sockets[2], status = 0;
    words = (uint64_t *)mmap(NULL, NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        return 4;
    pid_t child = fork();
    close(sockets[!!child]);
    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));
    (child ? waiter : recorder)(sockets[!child]);
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
    if (!child)
        return 0;
    waitpid(child, &status, 0);
    puts("notified");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 5;
}
