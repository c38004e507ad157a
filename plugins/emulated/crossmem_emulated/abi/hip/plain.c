/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of AMD's library that need no emulated device. hipCreateChannelDesc,
 * hiprtcGetErrorString and the functions that convert numbers return what AMD's functions return.
 * The other functions belong to features that are not emulated, and return an empty result.
 */

/* Compiled programs call these two functions to convert half-precision numbers. */
EXPORTED float __gnu_h2f_ieee(unsigned short half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = (half >> 10) & 31;
    uint32_t bits, fraction = half & 0x3FF;
    float result;

    if (exponent == 31) {
        bits = 0x7F800000 | fraction << 13;
    } else if (exponent) {
        bits = (exponent + 112) << 23 | fraction << 13;
    } else {
        /* A float represents each subnormal half-precision number exactly. */
        result = (float)fraction * 0x1p-24f;
        memcpy(&bits, &result, sizeof bits);
    }
    bits |= sign;
    memcpy(&result, &bits, sizeof result);
    return result;
}

EXPORTED unsigned short __gnu_f2h_ieee(float value)
{
    uint32_t bits, size, sign, kept, rest, half;

    memcpy(&bits, &value, sizeof bits);
    sign = bits >> 16 & 0x8000;
    size = bits & 0x7FFFFFFF;
    if (size > 0x7F800000)
        return (unsigned short)(sign | 0x7E00 | (size >> 13 & 0x3FF)); /* NaN */
    if (size >= 0x47800000)
        return (unsigned short)(sign | 0x7C00); /* too large, or infinite */
    if (size < 0x33000000)
        return (unsigned short)sign; /* below 2^-25: nearer to 0 than to the smallest subnormal */
    if (size >= 0x38800000) {
        kept = (size - 0x38000000) >> 13;
        rest = size & 0x1FFF;
        half = 0x1000;
    } else {
        uint32_t shift = 126 - (size >> 23), fraction = (size & 0x7FFFFF) | 0x800000;
        kept = fraction >> shift;
        rest = fraction & ((1u << shift) - 1);
        half = 1u << (shift - 1);
    }
    /* Round to nearest, ties to even. */
    kept += rest > half || (rest == half && (kept & 1));
    return (unsigned short)(sign | kept);
}

typedef struct { int x, y, z, w, kind; } hipChannelFormatDesc;

EXPORTED hipChannelFormatDesc hipCreateChannelDesc(int x, int y, int z, int w, int kind)
{
    return (hipChannelFormatDesc){x, y, z, w, kind};
}

EXPORTED const char *hiprtcGetErrorString(int result)
{
    static const char *const texts[] = {
        "HIPRTC_SUCCESS",
        "HIPRTC_ERROR_OUT_OF_MEMORY",
        "HIPRTC_ERROR_PROGRAM_CREATION_FAILURE",
        "HIPRTC_ERROR_INVALID_INPUT",
        "HIPRTC_ERROR_INVALID_PROGRAM",
        "HIPRTC_ERROR_INVALID_OPTION",
        "HIPRTC_ERROR_COMPILATION",
        "HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        "HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
        "HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
        "HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
        "HIPRTC_ERROR_INTERNAL_ERROR",
    };

    if (result >= 0 && (size_t)result < sizeof texts / sizeof *texts)
        return texts[result];
    return result == 100 ? "HIPRTC_ERROR_LINKING" : "unknown error";
}

/* The emulation has no precompiled headers. */
EXPORTED void __hipGetPCH(const char **pch, unsigned int *size)
{
    *pch = NULL;
    *size = 0;
}

/* Debuggers read the name, hash and id of AMD's build. The emulation has none of them. */
EXPORTED const char *amd_dbgapi_get_build_name(void)
{
    return "";
}

EXPORTED const char *amd_dbgapi_get_git_hash(void)
{
    return "";
}

EXPORTED size_t amd_dbgapi_get_build_id(void)
{
    return 0;
}

/* AMD's library can report each call to a profiler. The profiler calls this function to start or
 * stop the reports. The emulation makes no reports. */
EXPORTED _Bool hipEnableActivityCallback(unsigned int op, _Bool enable)
{
    (void)op;
    (void)enable;
    return 0;
}
