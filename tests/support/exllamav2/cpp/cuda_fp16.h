// Enough of the type for declarations; no arithmetic on the CPU goes through it.
#pragma once
struct half { unsigned short x; };
