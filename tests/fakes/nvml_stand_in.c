/* A stand-in for NVIDIA's management library: what it answers is told by FAKE_NVML.
 * A FAKE_NVML that is a path names a file with lines "CARD PID BYTES", read at each call, for what
 * processes take; while that file says "hang", no call returns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef struct { u64 total, free, used; } memory_t;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process_t;

enum { OK = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9,
       LIB_RM_VERSION_MISMATCH = 18, GPU_IS_LOST = 15 };

static int cards[2] = {0, 1};
static const u64 GIB = 1ull << 30;

static int scenario(const char *name) {
    const char *wanted = getenv("FAKE_NVML");
    return wanted && strcmp(wanted, name) == 0;
}

static int scenario_is_file(void) {
    const char *wanted = getenv("FAKE_NVML");
    return wanted && wanted[0] == '/';
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (scenario("mismatch")) return LIB_RM_VERSION_MISMATCH;
    if (scenario("unloaded")) return DRIVER_NOT_LOADED;
    return OK;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "told by the stand-in"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { strncpy(out, "575.64", size); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = scenario("unified") ? 1 : 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) {
    if (scenario("lost") && index == 0) return GPU_IS_LOST;
    *card = &cards[index];
    return OK;
}
int nvmlDeviceGetMemoryInfo(int *card, memory_t *out) {
    if (scenario("unified")) return NOT_SUPPORTED;
    out->total = *card ? 8 * GIB : 24 * GIB;
    out->free = *card ? 8 * GIB - 300 * (GIB >> 10) : 22 * GIB;
    out->used = out->total - out->free;
    return OK;
}
int nvmlDeviceGetPciInfo_v3(int *card, pci_t *out) {
    memset(out, 0, sizeof *out);
    strcpy(out->bus_id, *card ? "00000000:0A:00.0" : "00000000:01:00.0");
    return OK;
}
int nvmlDeviceGetName(int *card, char *out, unsigned size) {
    strncpy(out, *card ? "NVIDIA GeForce RTX 3070" : "NVIDIA GeForce RTX 4090", size);
    return OK;
}
int nvmlDeviceGetUUID(int *card, char *out, unsigned size) {
    strncpy(out, *card ? "GPU-b" : "GPU-a", size);
    return OK;
}
int nvmlDeviceGetDisplayActive(int *card, unsigned *out) { *out = *card == 0; return OK; }
int nvmlDeviceGetDisplayMode(int *card, unsigned *out) { *out = *card == 0; return OK; }
static int told(int card, unsigned *count, process_t *out) {
    unsigned room = *count, found = 0, on, pid;
    u64 used;
    char line[128];
    for (int waiting = 1; waiting;) {
        FILE *file = fopen(getenv("FAKE_NVML"), "r");
        waiting = 0;
        found = 0;
        while (file && fgets(line, sizeof line, file)) {
            if (strncmp(line, "hang", 4) == 0) waiting = 1;
            if (sscanf(line, "%u %u %llu", &on, &pid, &used) != 3 || (int)on != card) continue;
            if (found < room && out) {
                memset(&out[found], 0, sizeof *out);
                out[found].pid = pid;
                out[found].used = used;
            }
            found++;
        }
        if (file) fclose(file);
        if (waiting) usleep(20000);
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}
static int processes(unsigned *count, process_t *out, unsigned pid, u64 used) {
    if (*count < 1 || !out) { *count = 1; return INSUFFICIENT_SIZE; }
    memset(out, 0, sizeof *out);
    out->pid = pid;
    out->used = used;
    *count = 1;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(int *card, unsigned *count, process_t *out) {
    if (scenario_is_file()) return told(*card, count, out);
    if (*card) { *count = 0; return OK; }
    return processes(count, out, 4711, GIB);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(int *card, unsigned *count, process_t *out) {
    if (*card || scenario_is_file()) { *count = 0; return OK; }
    /* Not told, as under Windows' driver model. */
    return processes(count, out, 815, ~0ull);
}
