from cordwood.kernels.reference import readonly as readonly
