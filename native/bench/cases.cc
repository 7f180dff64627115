#include "cases.h"

#include <string>
#include <vector>

namespace multihead::bench {
namespace {

constexpr Shape kTiny = {"tiny", 1, 4, 4, 32, 32, 16};
constexpr Shape kGpt2 = {"gpt2-1k", 1, 12, 12, 1024, 1024, 64};
constexpr Shape kGpt2TokensFirst = {"gpt2-1k-bnhd", 1, 12, 12, 1024, 1024, 64, true};
constexpr Shape kBlocks = {"gpt2-1152", 1, 12, 12, 1152, 1152, 64};
constexpr Shape kBert = {"bert", 8, 12, 12, 128, 128, 64};
// bert-b1 is one sequence and fits in cache; batches of 8 exceed the caches of many machines.
constexpr Shape kBertOne = {"bert-b1", 1, 12, 12, 128, 128, 64};
constexpr Shape kBertTokensFirst = {"bert-bnhd", 8, 12, 12, 128, 128, 64, true};
constexpr Shape kVit = {"vit", 8, 12, 12, 197, 197, 64};
constexpr Shape kVitOne = {"vit-b1", 1, 12, 12, 197, 197, 64};
// One head, so threads can only share its rows.
constexpr Shape kHead = {"head-1k", 1, 1, 1, 1024, 1024, 64};
constexpr Shape kLlama3 = {"llama3-2k", 1, 32, 8, 2048, 2048, 128};
constexpr Shape kLong = {"long-8k", 1, 4, 4, 8192, 8192, 64};
constexpr Shape kLongHead = {"head-8k", 1, 1, 1, 8192, 8192, 64};
// 256 packed sequences of 16 to 128 tokens.
constexpr Shape kVarlen = {"packed-256", 1, 12, 12, 128, 128, 64, false, 256, 16};
constexpr Shape kGpt2Decode = {"gpt2-kv1k", 1, 12, 12, 1, 1024, 64};
constexpr Shape kLlama3Decode[] = {
    {"llama3-kv512", 1, 32, 8, 1, 512, 128},
    {"llama3-kv2k", 1, 32, 8, 1, 2048, 128},
    {"llama3-kv8k", 1, 32, 8, 1, 8192, 128},
    {"llama3-kv32k", 1, 32, 8, 1, 32768, 128},
};
// A decode step of 16 sequences.
constexpr Shape kLlama3Token = {"llama3-b16-kv1", 16, 32, 8, 1, 1, 128};
// d_model 768: x is (1, 512, 768).
constexpr Shape kModule = {"mha-768", 1, 12, 12, 512, 512, 64};
// The attention of each of the model's 12 layers; step_work.cc has the rest of the model.
constexpr Shape kGpt2Small = {"gpt2-small", 1, 12, 12, 1, 1024, 64};
// Rows x inputs x outputs: one projection of mha-768, and the fused q, k and v projection of one
// token.
constexpr Shape kGemm[] = {
    {"512x768x768", 1, 1, 1, 512, 768, 768},
    {"1x768x2304", 1, 1, 1, 1, 2304, 768},
};
// Rows of x, inputs x outputs: the MLPs and the outputs of SmolLM2-135M and Qwen3-0.6B.
constexpr Shape kLinear[] = {
    {"decode-576x1536", 1, 1, 1, 1, 1536, 576},   {"decode-576x49152", 1, 1, 1, 1, 49152, 576},
    {"decode-1024x3072", 1, 1, 1, 1, 3072, 1024}, {"decode-1024x151936", 1, 1, 1, 1, 151936, 1024},
    {"rows8-576x1536", 1, 1, 1, 8, 1536, 576},    {"prefill-576x1536", 1, 1, 1, 512, 1536, 576},
};
constexpr const char* kWeightTypes[] = {"f32", "f16", "bf16", "int8", "int4"};
// The attention of each layer; train_work.cc has the rest of the models.
constexpr Shape kTrain[] = {
    {"four-jobs", 16, 4, 4, 32, 32, 16},
    {"induction", 32, 2, 2, 32, 32, 16},
};

// 16k tokens and 2048 elements per token, as in the tables of FlashAttention-3 (arXiv:2407.08608).
constexpr Shape kServer[] = {
    {"d64-512", 32, 32, 32, 512, 512, 64},   {"d64-1k", 16, 32, 32, 1024, 1024, 64},
    {"d64-2k", 8, 32, 32, 2048, 2048, 64},   {"d64-4k", 4, 32, 32, 4096, 4096, 64},
    {"d64-8k", 2, 32, 32, 8192, 8192, 64},   {"d64-16k", 1, 32, 32, 16384, 16384, 64},
    {"d128-512", 32, 16, 16, 512, 512, 128}, {"d128-1k", 16, 16, 16, 1024, 1024, 128},
    {"d128-2k", 8, 16, 16, 2048, 2048, 128}, {"d128-4k", 4, 16, 16, 4096, 4096, 128},
    {"d128-8k", 2, 16, 16, 8192, 8192, 128}, {"d128-16k", 1, 16, 16, 16384, 16384, 128},
    {"d256-512", 32, 8, 8, 512, 512, 256},   {"d256-1k", 16, 8, 8, 1024, 1024, 256},
    {"d256-2k", 8, 8, 8, 2048, 2048, 256},   {"d256-4k", 4, 8, 8, 4096, 4096, 256},
    {"d256-8k", 2, 8, 8, 8192, 8192, 256},   {"d256-16k", 1, 8, 8, 16384, 16384, 256},
};
// 32 queries for each of 32 sequences, as in speculative decoding or in chunks of prompts.
constexpr Shape kServerChunk = {"llama3-b32-q32-kv4k", 32, 32, 8, 32, 4096, 128};
constexpr Shape kServerDecode[] = {
    {"llama3-b16-kv8k", 16, 32, 8, 1, 8192, 128},
    {"llama3-b64-kv2k", 64, 32, 8, 1, 2048, 128},
};

}  // namespace

const char* name_of(Mask mask) {
  switch (mask) {
    case Mask::kFull:
      return "full";
    case Mask::kCausal:
      return "causal";
    case Mask::kBoolean:
      return "boolean";
    case Mask::kPadding:
      return "padding";
    case Mask::kLengths:
      return "lengths";
    case Mask::kWindow:
      return "window";
    case Mask::kBias:
      return "bias";
    case Mask::kAlibi:
      return "alibi";
    case Mask::kWeights:
      return "weights";
    case Mask::kBlocks2:
      return "blocks-1of2";
    case Mask::kBlocks3:
      return "blocks-1of3";
    case Mask::kBlocks6:
      return "blocks-1of6";
  }
  return "";
}

const char* name_of(Op op) {
  switch (op) {
    case Op::kForward:
      return "forward";
    case Op::kBackward:
      return "backward";
    case Op::kDecode:
      return "decode";
    case Op::kCache:
      return "cache";
    case Op::kAppend:
      return "append";
    case Op::kMerge:
      return "merge";
    case Op::kModule:
      return "module";
    case Op::kStep:
      return "step";
    case Op::kTrain:
      return "train";
    case Op::kGemm:
      return "gemm";
    case Op::kLinear:
      return "linear";
  }
  return "";
}

std::string Case::name() const {
  return std::string(name_of(op)) + "/" + shape.name + "/" + name_of(mask) + "/" + dtype +
         (threads == kOnDevice ? "/cuda" : "/threads:" + std::to_string(threads));
}

std::vector<Case> all_cases(const std::vector<int>& threads) {
  std::vector<Case> cases;
  const auto forward = [&](const Shape& shape, Mask mask, const char* dtype = "f32") {
    cases.push_back({Op::kForward, shape, mask, dtype, 1});
  };
  forward(kTiny, Mask::kCausal);
  forward(kTiny, Mask::kFull);
  forward(kGpt2, Mask::kCausal);
  forward(kGpt2, Mask::kFull);
  forward(kBert, Mask::kFull);
  forward(kVit, Mask::kFull);
  forward(kBertOne, Mask::kFull);
  forward(kVitOne, Mask::kFull);
  forward(kHead, Mask::kCausal);
  forward(kLlama3, Mask::kCausal);
  forward(kLong, Mask::kCausal);
  forward(kVarlen, Mask::kCausal);
  forward(kVarlen, Mask::kFull);

  for (const char* dtype : {"f16", "bf16"}) {
    forward(kGpt2, Mask::kCausal, dtype);
    forward(kLlama3, Mask::kCausal, dtype);
  }
  forward(kGpt2, Mask::kCausal, kBf16Precision);
  forward(kGpt2, Mask::kFull, kBf16Precision);
  forward(kBert, Mask::kFull, kBf16Precision);
  forward(kLlama3, Mask::kCausal, kBf16Precision);
  forward(kLong, Mask::kCausal, kBf16Precision);
  forward(kGpt2TokensFirst, Mask::kCausal);
  forward(kBertTokensFirst, Mask::kFull);

  for (const Mask mask : {Mask::kBoolean, Mask::kPadding, Mask::kLengths, Mask::kWindow,
                          Mask::kBias, Mask::kAlibi, Mask::kWeights}) {
    forward(kGpt2, mask);
  }
  for (const Mask mask : {Mask::kFull, Mask::kBlocks2, Mask::kBlocks3, Mask::kBlocks6}) {
    forward(kBlocks, mask);
  }

  for (const Mask mask : {Mask::kCausal, Mask::kFull}) {
    cases.push_back({Op::kBackward, kGpt2, mask, "f32", 1});
  }
  cases.push_back({Op::kBackward, kTiny, Mask::kCausal, "f32", 1});
  cases.push_back({Op::kBackward, kLongHead, Mask::kCausal, "f32", 1});
  cases.push_back({Op::kBackward, kVarlen, Mask::kCausal, "f32", 1});

  cases.push_back({Op::kDecode, kGpt2Decode, Mask::kFull, "f32", 1});
  for (const Shape& shape : kLlama3Decode) {
    cases.push_back({Op::kDecode, shape, Mask::kFull, "f32", 1});
  }
  for (const char* dtype : {"f32", "f16", "bf16", "int8"}) {
    cases.push_back({Op::kCache, kLlama3Decode[2], Mask::kFull, dtype, 1});
  }
  cases.push_back({Op::kCache, kGpt2Decode, Mask::kFull, "int8", 1});
  cases.push_back({Op::kCache, kLlama3Decode[3], Mask::kFull, "int8", 1});
  for (const char* dtype : {"f32", "f16", "bf16", "int8"}) {
    cases.push_back({Op::kAppend, kLlama3Decode[0], Mask::kFull, dtype, 1});
  }
  cases.push_back({Op::kAppend, kLlama3Token, Mask::kFull, "f32", 1});
  cases.push_back({Op::kAppend, kLlama3Token, Mask::kFull, "int8", 1});
  cases.push_back({Op::kMerge, kGpt2, Mask::kFull, "f32", 1});
  cases.push_back({Op::kMerge, kLlama3Token, Mask::kFull, "f32", 1});
  cases.push_back({Op::kModule, kModule, Mask::kFull, "f32", 1});
  cases.push_back({Op::kModule, kModule, Mask::kWeights, "f32", 1});
  cases.push_back({Op::kStep, kGpt2Small, Mask::kFull, "f32", 1});
  for (const Shape& shape : kTrain) cases.push_back({Op::kTrain, shape, Mask::kCausal, "f32", 1});
  for (const Shape& shape : kGemm) cases.push_back({Op::kGemm, shape, Mask::kFull, "f32", 1});
  cases.push_back({Op::kModule, kModule, Mask::kFull, kBf16Precision, 1});
  cases.push_back({Op::kGemm, kGemm[0], Mask::kFull, kBf16Precision, 1});
  for (const Shape& shape : kLinear) {
    for (const char* const type : kWeightTypes) {
      cases.push_back({Op::kLinear, shape, Mask::kFull, type, 1});
    }
  }

  std::vector<Case> all;
  for (const int count : threads) {
    for (Case& which : cases) {
      which.threads = count;
      all.push_back(which);
    }
  }
  return all;
}

std::vector<Case> all_device_cases() {
  std::vector<Case> cases;
  const auto add = [&](Op op, const Shape& shape, Mask mask, const char* dtype) {
    cases.push_back({op, shape, mask, dtype, kOnDevice});
  };
  for (const char* dtype : {"f32", "bf16"}) {
    add(Op::kForward, kTiny, Mask::kCausal, dtype);
    add(Op::kForward, kGpt2, Mask::kCausal, dtype);
    add(Op::kForward, kBert, Mask::kFull, dtype);
    add(Op::kForward, kVit, Mask::kFull, dtype);
    add(Op::kForward, kLlama3, Mask::kCausal, dtype);
  }
  for (const Mask mask :
       {Mask::kBoolean, Mask::kPadding, Mask::kLengths, Mask::kWindow, Mask::kBias, Mask::kAlibi}) {
    add(Op::kForward, kGpt2, mask, "bf16");
    add(Op::kBackward, kGpt2, mask, "bf16");
    add(Op::kDecode, kServerDecode[0], mask, "bf16");
  }
  add(Op::kBackward, kGpt2, Mask::kFull, "bf16");
  for (const Shape& shape : kServer) {
    for (const Mask mask : {Mask::kFull, Mask::kCausal}) {
      add(Op::kForward, shape, mask, "bf16");
      if (shape.keys == 4096) add(Op::kForward, shape, mask, "f16");
      if (shape.keys == 1024) add(Op::kForward, shape, mask, "f32");
    }
  }
  add(Op::kForward, kServerChunk, Mask::kFull, "bf16");
  for (const Mask mask : {Mask::kFull, Mask::kCausal}) {
    add(Op::kBackward, kGpt2, mask, "f32");
    for (const Shape& shape : kServer) {
      add(Op::kBackward, shape, mask, "bf16");
    }
  }
  add(Op::kDecode, kGpt2Decode, Mask::kFull, "f32");
  for (const Shape& shape : kLlama3Decode) add(Op::kDecode, shape, Mask::kFull, "bf16");
  for (const Shape& shape : kServerDecode) {
    for (const char* dtype : {"f32", "f16", "bf16"}) add(Op::kDecode, shape, Mask::kFull, dtype);
  }
  for (const char* dtype : {"f32", "f16", "bf16"}) {
    add(Op::kCache, kLlama3Decode[2], Mask::kFull, dtype);
  }
  add(Op::kCache, kServerDecode[0], Mask::kFull, "bf16");
  return cases;
}

}  // namespace multihead::bench
