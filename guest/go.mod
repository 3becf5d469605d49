module releap/guest

go 1.19
