/* Any bytes on a connection of the server, in parts of any size: every reply is well-formed, and nothing is left when the client
 * goes. Input: the size of the parts (a byte), what the client sends. */
#include "served.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes > 1)
        served_send(bytes + 1, n_bytes - 1, bytes[0] < 64 ? (size_t)bytes[0] + 1 : n_bytes);
    return 0;
}
