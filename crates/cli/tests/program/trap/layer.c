/* A Vulkan layer whose device is lost, or hangs, once a file exists: what happens to a GPU that falls off its bus.
   STOVEPIPE_TRAP names the file, STOVEPIPE_TRAP_HANGS says that calls do not return. The types are those of
   vk_layer.h and vulkan_core.h, as far as they are needed (Vulkan's loader-layer interface, version 2). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*Function)(void);
typedef Function (*GetProcAddr)(void *handle, const char *name);
typedef int32_t (*Create)(void *parent, const void *info, const void *allocator, void **made);
typedef int32_t (*CreateInstance)(const void *info, const void *allocator, void **made);
typedef int32_t (*Submit)(void *queue, uint32_t count, const void *submits, uint64_t fence);

enum { LOADER_INSTANCE_CREATE_INFO = 47, LOADER_DEVICE_CREATE_INFO = 48, LINK_INFO = 0 };
enum { ERROR_INITIALIZATION_FAILED = -3, ERROR_DEVICE_LOST = -4 };

struct link {
    struct link *next;
    GetProcAddr instance_proc_addr;
    /* Of an instance, that of physical devices. */
    GetProcAddr device_proc_addr;
};

struct create_info {
    int32_t type;
    const struct create_info *next;
    int32_t function;
    struct link *link;
};

struct interface {
    int32_t type;
    void *next;
    uint32_t version;
    GetProcAddr instance_proc_addr, device_proc_addr, physical_device_proc_addr;
};

static GetProcAddr next_instance_proc_addr, next_device_proc_addr;
static void *instance_made;
static Submit next_submit, next_submit2;

static int is_sprung(void) {
    const char *file = getenv("STOVEPIPE_TRAP");
    if (file == NULL || access(file, F_OK) != 0) return 0;
    while (getenv("STOVEPIPE_TRAP_HANGS") != NULL) pause();
    return 1;
}

static int32_t submit(void *queue, uint32_t count, const void *submits, uint64_t fence) {
    return is_sprung() ? ERROR_DEVICE_LOST : next_submit(queue, count, submits, fence);
}

static int32_t submit2(void *queue, uint32_t count, const void *submits, uint64_t fence) {
    return is_sprung() ? ERROR_DEVICE_LOST : next_submit2(queue, count, submits, fence);
}

/* The loader's list of layers. Each takes itself off before it calls the next one. */
static struct link *take_link(const void *info, int32_t type) {
    struct create_info *own = (struct create_info *)info;
    while (own != NULL && !(own->type == type && own->function == LINK_INFO))
        own = (struct create_info *)own->next;
    if (own == NULL) return NULL;
    struct link *link = own->link;
    own->link = link->next;
    return link;
}

static int32_t create_instance(const void *info, const void *allocator, void **made) {
    struct link *link = take_link(info, LOADER_INSTANCE_CREATE_INFO);
    if (link == NULL) return ERROR_INITIALIZATION_FAILED;
    next_instance_proc_addr = link->instance_proc_addr;
    CreateInstance next = (CreateInstance)next_instance_proc_addr(NULL, "vkCreateInstance");
    int32_t result = next(info, allocator, made);
    instance_made = *made;
    return result;
}

static int32_t create_device(void *physical, const void *info, const void *allocator, void **made) {
    struct link *link = take_link(info, LOADER_DEVICE_CREATE_INFO);
    if (link == NULL) return ERROR_INITIALIZATION_FAILED;
    next_device_proc_addr = link->device_proc_addr;
    Create next = (Create)link->instance_proc_addr(instance_made, "vkCreateDevice");
    int32_t result = next(physical, info, allocator, made);
    if (result == 0) {
        next_submit = (Submit)next_device_proc_addr(*made, "vkQueueSubmit");
        next_submit2 = (Submit)next_device_proc_addr(*made, "vkQueueSubmit2");
        if (next_submit2 == NULL) next_submit2 = (Submit)next_device_proc_addr(*made, "vkQueueSubmit2KHR");
    }
    return result;
}

static Function device_proc_addr(void *device, const char *name);
static Function instance_proc_addr(void *instance, const char *name);

static Function own(const char *name) {
    if (strcmp(name, "vkGetInstanceProcAddr") == 0) return (Function)instance_proc_addr;
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) return (Function)device_proc_addr;
    if (strcmp(name, "vkCreateInstance") == 0) return (Function)create_instance;
    if (strcmp(name, "vkCreateDevice") == 0) return (Function)create_device;
    if (strcmp(name, "vkQueueSubmit") == 0) return (Function)submit;
    if (strncmp(name, "vkQueueSubmit2", 14) == 0) return (Function)submit2;
    return NULL;
}

static Function device_proc_addr(void *device, const char *name) {
    Function found = own(name);
    return found != NULL ? found : next_device_proc_addr(device, name);
}

static Function instance_proc_addr(void *instance, const char *name) {
    Function found = own(name);
    if (found != NULL) return found;
    return next_instance_proc_addr != NULL ? next_instance_proc_addr(instance, name) : NULL;
}

int32_t vkNegotiateLoaderLayerInterfaceVersion(struct interface *interface) {
    interface->version = 2;
    interface->instance_proc_addr = instance_proc_addr;
    interface->device_proc_addr = device_proc_addr;
    interface->physical_device_proc_addr = NULL;
    return 0;
}
