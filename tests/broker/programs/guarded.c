/* Every tensor of torch's CPU allocator ends where a page begins that nobody may touch.

   Loaded with LD_PRELOAD. torch takes its memory with posix_memalign and gives it back with free;
   while `guarded_on` is set, such a block is mapped alone, its end as near to the forbidden page as
   its alignment allows, and another such page stands before it. What lies between block and pages
   holds a pattern, as the block does at first; where the pattern is broken when the block is given
   back, the process ends by SIGABRT. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096UL
#define SLOTS (1 << 16)
#define PATTERN 0xA5

int guarded_on = 0;
static void *blocks[SLOTS];
static void *maps[SLOTS];
static size_t lengths[SLOTS];
static size_t sizes[SLOTS];
static int (*real_memalign)(void **, size_t, size_t);
static void (*real_free)(void *);

static size_t slot_of(void *block) { return ((uintptr_t)block >> 12) % SLOTS; }

static void look(const unsigned char *from, const unsigned char *to) {
  for (; from < to; from++)
    if (*from != PATTERN) abort();
}

int posix_memalign(void **made, size_t alignment, size_t size) {
  if (!real_memalign) real_memalign = dlsym(RTLD_NEXT, "posix_memalign");
  if (!guarded_on || size > (64UL << 20)) return real_memalign(made, alignment, size);
  size_t whole = (size + PAGE - 1) / PAGE * PAGE + PAGE;
  char *start = mmap(NULL, whole + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return ENOMEM;
  mprotect(start + PAGE, whole - PAGE, PROT_READ | PROT_WRITE);
  char *block = start + whole - (size + alignment - 1) / alignment * alignment;
  size_t slot = slot_of(block);
  if (blocks[slot]) { munmap(start, whole + PAGE); return real_memalign(made, alignment, size); }
  blocks[slot] = block;
  maps[slot] = start;
  lengths[slot] = whole + PAGE;
  sizes[slot] = size;
  memset(start + PAGE, PATTERN, whole - PAGE);
  *made = block;
  return 0;
}

void free(void *block) {
  if (!real_free) real_free = dlsym(RTLD_NEXT, "free");
  size_t slot = slot_of(block);
  if (block && blocks[slot] == block) {
    char *start = maps[slot], *end = start + lengths[slot] - PAGE;
    look((unsigned char *)start + PAGE, block);
    look((unsigned char *)block + sizes[slot], (unsigned char *)end);
    blocks[slot] = NULL;
    munmap(maps[slot], lengths[slot]);
    return;
  }
  real_free(block);
}
