#include "cut_file.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace jubako {
namespace {

// Only what a signal handler may call.

void say(const char* text, size_t length) {
    while (length > 0) {
        const ssize_t written = write(STDERR_FILENO, text, length);
        if (written <= 0) return;
        text += written;
        length -= static_cast<size_t>(written);
    }
}

const char* hexadecimal(const char* text, uintptr_t& value) {
    for (value = 0;; ++text) {
        if (*text >= '0' && *text <= '9') value = value * 16 + static_cast<uintptr_t>(*text - '0');
        else if (*text >= 'a' && *text <= 'f') value = value * 16 + static_cast<uintptr_t>(*text - 'a' + 10);
        else return text;
    }
}

// The path in a line of /proc/self/maps (start-end mode offset device inode path) if the address lies there and it has one.
const char* path_at(const char* line, uintptr_t address) {
    uintptr_t start, end;
    line = hexadecimal(line, start);
    line = hexadecimal(line + (*line == '-'), end);
    return address >= start && address < end ? strchr(line, '/') : nullptr;
}

void explain(int, siginfo_t* info, void*) {
    static std::atomic_flag first = ATOMIC_FLAG_INIT;
    if (first.test_and_set()) {
        for (;;) pause();  // another thread is saying it
    }
    static char buffer[8192];
    size_t held = 0;
    const int maps = open("/proc/self/maps", O_RDONLY);
    for (ssize_t got; maps >= 0 && (got = read(maps, buffer + held, sizeof buffer - 1 - held)) > 0;) {
        held += static_cast<size_t>(got);
        buffer[held] = '\0';
        char *line = buffer, *end;
        for (; (end = strchr(line, '\n')) != nullptr; line = end + 1) {
            *end = '\0';
            if (const char* path = path_at(line, reinterpret_cast<uintptr_t>(info->si_addr))) {
                const char before[] = "jubako: ", after[] = ": its bytes are gone: it was cut, or its disk was unplugged, while it was in use\n";
                say(before, sizeof before - 1);
                say(path, strlen(path));
                say(after, sizeof after - 1);
                _exit(1);
            }
        }
        held = static_cast<size_t>(buffer + held - line);
        memmove(buffer, line, held);
    }
    signal(SIGBUS, SIG_DFL);  // something else: it happens again
    first.clear();
}

}  // namespace

void explain_cut_files() {
    struct sigaction action {};
    action.sa_sigaction = explain;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
}

}  // namespace jubako
