/* What a clang that makes PTX can compile: meson.build asks. */
__attribute__((nvptx_kernel)) void probe(float *x)
{
    *x = 1;
}
