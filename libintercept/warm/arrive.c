/* warm/arrive.c - replaces all memory of this process by that of an image.
 *
 * Why it exists: while that happens there is no libc and no library, this one included. So the code
 * runs from a copy at an address that both memories leave free, and makes system calls itself.
 *
 * Rule: nothing here may call a function, use a variable of the library, or need a table that the
 * compiler makes. Whatever can be checked has been checked before (restore.c). */
#define _GNU_SOURCE
#include "warm/image.h"
#include <asm/prctl.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define ALONE                                                       \
    __attribute__((section("ph_alone"), no_stack_protector, unused, \
                   no_sanitize("address", "undefined", "thread")))
#ifndef MAP_FIXED_NOREPLACE /* linux/mman.h */
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 8
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

extern char __start_ph_alone[] __attribute__((visibility("hidden"))),
    __stop_ph_alone[] __attribute__((visibility("hidden")));

struct ph_range ph_arrive_code(void)
{
    return (struct ph_range){(uint64_t)__start_ph_alone, (uint64_t)__stop_ph_alone};
}

__asm__(".text\n"
        ".globl ph_registers_save\n"
        ".hidden ph_registers_save\n"
        ".type ph_registers_save, @function\n"
        "ph_registers_save:\n"
        "    mov %rbx, 0(%rdi)\n"
        "    mov %rbp, 8(%rdi)\n"
        "    mov %r12, 16(%rdi)\n"
        "    mov %r13, 24(%rdi)\n"
        "    mov %r14, 32(%rdi)\n"
        "    mov %r15, 40(%rdi)\n"
        "    lea 8(%rsp), %rax\n"
        "    mov %rax, 48(%rdi)\n"
        "    mov (%rsp), %rax\n"
        "    mov %rax, 56(%rdi)\n"
        "    xor %eax, %eax\n"
        "    ret\n"
        ".size ph_registers_save, . - ph_registers_save\n");

static inline __attribute__((always_inline)) ALONE long call(long number, uint64_t a, uint64_t b,
                                                             uint64_t c, uint64_t d, uint64_t e,
                                                             uint64_t f)
{
    long result;
    register uint64_t r10 __asm__("r10") = d;
    register uint64_t r8 __asm__("r8") = e;
    register uint64_t r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

/* There is nobody left to say it: the exit status is that of a failure of ours. */
static inline __attribute__((always_inline)) ALONE _Noreturn void give_up(void)
{
    for (;;) call(SYS_exit_group, 70, 0, 0, 0, 0, 0);
}

static inline __attribute__((always_inline)) ALONE bool failed(long result)
{
    return result < 0 && result > -PH_PAGE;
}

static inline __attribute__((always_inline)) ALONE void make(const struct ph_plan *plan,
                                                             const struct ph_step *step)
{
    uint64_t flags = MAP_FIXED_NOREPLACE, protection = step->protection;
    long fd = -1;
    flags |= step->kind == PH_IMAGE_SHARED    ? MAP_SHARED
             : step->kind == PH_IMAGE_DROPPED ? MAP_DROPPABLE
                                              : MAP_PRIVATE;
    if (!step->path && step->kind != PH_IMAGE_PAGES) flags |= MAP_ANONYMOUS | MAP_NORESERVE;
    if (step->kind == PH_IMAGE_COPY) protection = PROT_READ | PROT_WRITE;
    if (step->kind == PH_IMAGE_PAGES) fd = plan->image_fd;
    if (step->path) fd = call(SYS_open, (uint64_t)step->path, O_RDONLY | O_CLOEXEC, 0, 0, 0, 0);
    uint64_t offset = step->kind == PH_IMAGE_COPY ? 0 : step->offset;
    if (call(SYS_mmap, step->start, step->length, protection, flags, (uint64_t)fd, offset) !=
        (long)step->start)
        give_up();
    if (step->path) call(SYS_close, (uint64_t)fd, 0, 0, 0, 0, 0);
    if (step->kind == PH_IMAGE_WIPED &&
        failed(call(SYS_madvise, step->start, step->length, MADV_WIPEONFORK, 0, 0, 0)))
        give_up();
    if (step->kind != PH_IMAGE_COPY) return;
    uint64_t at = step->start + step->length - step->copied, left = step->copied;
    for (offset = step->offset; left;) {
        long got = call(SYS_pread64, (uint64_t)plan->image_fd, at, left, offset, 0, 0);
        if (got <= 0) give_up();
        at += (uint64_t)got, offset += (uint64_t)got, left -= (uint64_t)got;
    }
    if (protection != step->protection &&
        failed(call(SYS_mprotect, step->start, step->length, step->protection, 0, 0, 0)))
        give_up();
}

ALONE void ph_arrive(const struct ph_plan *plan)
{
    for (uint64_t i = 0; i < plan->leave_count; i++)
        call(SYS_munmap, plan->leave[i].start, plan->leave[i].end - plan->leave[i].start, 0, 0, 0,
             0);
    for (uint64_t i = 0; i < plan->move_count; i++)
        if (plan->move[i].from != plan->move[i].to &&
            failed(call(SYS_mremap, plan->move[i].from, plan->move[i].length, plan->move[i].length,
                        MREMAP_MAYMOVE | MREMAP_FIXED, plan->move[i].to, 0)))
            give_up();
    for (uint64_t i = 0; i < plan->step_count; i++) make(plan, &plan->steps[i]);
    call(SYS_close, (uint64_t)plan->image_fd, 0, 0, 0, 0, 0);
    const struct ph_thread_state *thread = &plan->thread;
    if (failed(call(SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, (uint64_t)&plan->mm, sizeof plan->mm, 0,
                    0)) ||
        failed(call(SYS_arch_prctl, ARCH_SET_FS, thread->fs, 0, 0, 0, 0)))
        give_up();
    *(volatile int *)thread->tid_address =
        (int)call(SYS_set_tid_address, thread->tid_address, 0, 0, 0, 0, 0);
    call(SYS_set_robust_list, thread->robust_list, thread->robust_length, 0, 0, 0, 0);
    if (thread->rseq_length &&
        failed(call(SYS_rseq, thread->rseq, thread->rseq_length, 0, PH_RSEQ_SIGNATURE, 0, 0)))
        give_up();
    volatile struct ph_arrival *arrival = plan->arrival_at;
    arrival->argc = plan->arrival.argc;
    arrival->argv = plan->arrival.argv;
    arrival->environment = plan->arrival.environment;
    arrival->plan.start = plan->arrival.plan.start;
    arrival->plan.end = plan->arrival.plan.end;
    __asm__ volatile("mov 0(%%rcx), %%rbx\n"
                     "mov 8(%%rcx), %%rbp\n"
                     "mov 16(%%rcx), %%r12\n"
                     "mov 24(%%rcx), %%r13\n"
                     "mov 32(%%rcx), %%r14\n"
                     "mov 40(%%rcx), %%r15\n"
                     "mov 48(%%rcx), %%rsp\n"
                     "mov $1, %%eax\n"
                     "jmp *56(%%rcx)\n"
                     :
                     : "c"(&plan->registers)
                     : "memory");
    __builtin_unreachable();
}
