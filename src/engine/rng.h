/* The engine's random numbers are those of base. */
#ifndef TUTTI_RNG_H
#define TUTTI_RNG_H

#include "base/rng.h" // IWYU pragma: export

#endif
