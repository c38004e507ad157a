/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of ACL that use no device.
 */
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

struct aclDataBuffer {
    void *data;
    size_t size;
};

EXPORTED aclDataBuffer *aclCreateDataBuffer(void *data, size_t size)
{
    aclDataBuffer *made = malloc(sizeof *made);
    if (made)
        *made = (aclDataBuffer){data, size};
    return made;
}

EXPORTED aclError aclDestroyDataBuffer(const aclDataBuffer *dataBuffer)
{
    free((void *)dataBuffer);
    return dataBuffer ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

EXPORTED aclError aclUpdateDataBuffer(aclDataBuffer *dataBuffer, void *data, size_t size)
{
    if (!dataBuffer)
        return ACL_ERROR_INVALID_PARAM;
    *dataBuffer = (aclDataBuffer){data, size};
    return ACL_SUCCESS;
}

EXPORTED void *aclGetDataBufferAddr(const aclDataBuffer *dataBuffer)
{
    return dataBuffer ? dataBuffer->data : NULL;
}

EXPORTED uint32_t aclGetDataBufferSize(const aclDataBuffer *dataBuffer)
{
    return dataBuffer ? (uint32_t)dataBuffer->size : 0;
}

EXPORTED size_t aclGetDataBufferSizeV2(const aclDataBuffer *dataBuffer)
{
    return dataBuffer ? dataBuffer->size : 0;
}

EXPORTED size_t aclDataTypeSize(aclDataType dataType)
{
    switch ((int)dataType) {
    case ACL_BOOL:
    case ACL_INT8:
    case ACL_UINT8:
    case 34: /* the floating-point formats of 8 bits */
    case 35:
    case 36:
    case 37:
        return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16:
        return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_COMPLEX32:
        return 4;
    case ACL_DOUBLE:
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_COMPLEX64:
        return 8;
    case ACL_COMPLEX128:
        return 16;
    default: /* an undefined type, a string, or a type smaller than a byte */
        return 0;
    }
}

EXPORTED float aclFloat16ToFloat(aclFloat16 value)
{
    uint32_t sign = (uint32_t)(value & 0x8000) << 16, bits = value & 0x7FFF;
    union {
        uint32_t bits;
        float number;
    } result;
    if (bits >= 0x7C00) /* infinity, or NaN */
        result.bits = 0x7F800000 | (bits & 0x3FF) << 13;
    else if (bits >= 0x400)
        result.bits = (bits << 13) + ((127 - 15) << 23);
    else /* subnormal: a multiple of 2 to the power of -24 */
        result.number = (float)bits / (1 << 24);
    result.bits |= sign;
    return result.number;
}

EXPORTED aclFloat16 aclFloatToFloat16(float value)
{
    union {
        float number;
        uint32_t bits;
    } given = {value};
    uint32_t sign = given.bits >> 16 & 0x8000, bits = given.bits & 0x7FFFFFFF;
    if (bits > 0x7F800000) /* NaN */
        return sign | 0x7E00;
    if (bits >= 0x477FF000) /* rounds to infinity */
        return sign | 0x7C00;
    if (bits < 0x33000001) /* rounds to 0 */
        return sign;
    /* Round to nearest, ties to even. */
    uint32_t shift = 13, mantissa = bits - ((127 - 15) << 23);
    if (bits < 0x38800000) { /* subnormal */
        shift = 126 - (bits >> 23);
        mantissa = (bits & 0x7FFFFF) | 0x800000;
    }
    uint32_t kept = mantissa >> shift, cut = mantissa & ((1u << shift) - 1);
    uint32_t half = 1u << (shift - 1);
    return sign | (kept + (cut > half || (cut == half && kept & 1)));
}

/* Prints a log entry if ASCEND_SLOG_PRINT_TO_STDOUT is 1, and if the level of the entry is at least
 * ASCEND_GLOBAL_LOG_LEVEL (default: errors). By default, neither this function nor the vendor's
 * function prints anything. */
EXPORTED void aclAppLog(aclLogLevel logLevel, const char *func, const char *file, uint32_t line,
                        const char *fmt, ...)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
    const char *wanted = getenv("ASCEND_SLOG_PRINT_TO_STDOUT");
    const char *least = getenv("ASCEND_GLOBAL_LOG_LEVEL");
    if (!wanted || strcmp(wanted, "1") || (int)logLevel < (least ? atoi(least) : ACL_ERROR) ||
        (unsigned)logLevel > ACL_ERROR || !fmt)
        return;
    char text[1024];
    va_list more;
    va_start(more, fmt);
    vsnprintf(text, sizeof text, fmt, more);
    va_end(more);
    printf("[%s] APP(%d,%ld): [%s:%u]%s: %s\n", names[logLevel], getpid(),
           (long)syscall(SYS_gettid), file ? file : "", line, func ? func : "", text);
}
