/* A library of NCCL's name without its functions: what finds it does without NCCL, whatever the machine has. */
extern const int has_no_nccl;
const int has_no_nccl = 1;
