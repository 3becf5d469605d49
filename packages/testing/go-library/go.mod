module releap/go-library

go 1.19
