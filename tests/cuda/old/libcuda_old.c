/* A library of the driver's name that has one function only. */
int cuInit(unsigned flags);

__attribute__((visibility("default"))) int cuInit(unsigned flags)
{
    return flags != 0;
}
