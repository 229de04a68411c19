package app

import (
	"os"
	"testing"
)

func TestDescriptors(t *testing.T) {
	before, most := descriptors()
	if before < 3 || most < before {
		t.Fatalf("%d of %d", before, most)
	}
	for range 10 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
	}
	if now, _ := descriptors(); now < before+5 { // others open and close some meanwhile
		t.Errorf("%d after opening ten more than %d", now, before)
	}
}
