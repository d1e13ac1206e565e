/* Linked into a test program, turns the engine's audit on. */
#include "engine/run/engine.h"

__attribute__((constructor)) static void turn_audit_on(void)
{
    engine_set_audit(true);
}
