/* What this processor and its operating system offer. */
#include "kernels/arm/arm.h"

#if defined(__APPLE__)
#include <sys/sysctl.h>

static bool has(const char *name)
{
    int value = 0;
    size_t n = sizeof value;
    return sysctlbyname(name, &value, &n, NULL, 0) == 0 && value != 0;
}

static bool has_dotprod(void)
{
    return has("hw.optional.arm.FEAT_DotProd");
}

static bool has_i8mm(void)
{
    return has("hw.optional.arm.FEAT_I8MM");
}
#else
#include <asm/hwcap.h>
#include <sys/auxv.h>

static bool has_dotprod(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
}

static bool has_i8mm(void)
{
    return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
}
#endif

unsigned arm_detect(void)
{
    unsigned cpu = CPU_NEON; /* part of AArch64 */
    if (has_dotprod())
        cpu |= CPU_DOTPROD;
    if ((cpu & CPU_DOTPROD) && has_i8mm())
        cpu |= CPU_I8MM;
    return cpu;
}
