// Installtrust adds a certificate to the trust stores below a folder, as the agent does in a guest: for tests with real clients.
package main

import (
	"os"

	"releap/guest/internal/boot"
)

func main() {
	pem, err := os.ReadFile(os.Args[2])
	if err != nil {
		panic(err)
	}
	if _, errs := boot.InstallTrust(os.Args[1], string(pem), nil); len(errs) > 0 {
		panic(errs[0])
	}
}
