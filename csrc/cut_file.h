// Mapped files whose bytes are gone, because somebody cut them or a disk was unplugged: reading them is a signal.
#pragma once

namespace jubako {

// From now on such a signal ends the process with a line that names the file, exit code 1.
void explain_cut_files();

}  // namespace jubako
