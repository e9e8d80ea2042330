#pragma once

// The last kernel that cuDNN has looked up by name; "" before the first.
extern "C" const char* FakeLibcudaLastKernel();
