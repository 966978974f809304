/* Python in a program that is linked with ThreadSanitizer's runtime, which has to be there before
 * anything else. */
#include <Python.h>

int main(int argc, char **argv) { return Py_BytesMain(argc, argv); }
