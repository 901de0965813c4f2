// A program in C: prints the lines of standard input that hold a word, with their numbers.

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    char line[4096];
    int number = 0, found = 0;
    if (argc != 3 || strcmp(argv[1], "--") != 0) {
        fprintf(stderr, "usage: find-lines -- WORD\n");
        return 2;
    }
    while (fgets(line, sizeof line, stdin)) {
        number++;
        line[strcspn(line, "\n")] = 0;
        if (strstr(line, argv[2])) {
            printf("%d: %s\n", number, line);
            found++;
        }
    }
    if (found == 0) {
        fprintf(stderr, "no line holds it\n");
        return 1;
    }
    return 0;
}
