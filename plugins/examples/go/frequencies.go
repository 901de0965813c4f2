// A program in Go: how often each word of standard input occurs, as JSON.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
)

func main() {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	notInWord := func(c rune) bool { return !unicode.IsLetter(c) && !unicode.IsDigit(c) }
	counts := map[string]int{}
	for _, word := range strings.FieldsFunc(strings.ToLower(string(text)), notInWord) {
		counts[word]++
	}
	if len(counts) == 0 {
		fmt.Fprintln(os.Stderr, "the text has no words")
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(counts); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
