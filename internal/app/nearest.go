package app

import "pointsman.dev/pointsman/internal/llmapi"

// nearest is the known word that the user may have meant, "" for none.
func nearest(word string, known []string) string { return llmapi.NearMiss(word, known) }
