module gemmaserving.dev/tools/pause

go 1.21
