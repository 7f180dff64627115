#include "multihead/context.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "multihead/attention.h"

namespace multihead {
namespace {

Status attend(Context& context) {
  const Dims shape{1, 2, 3, 8};
  const std::vector<float> x(48, 0.5F);
  std::vector<float> out(x.size());
  const ConstTensor view{x.data(), shape};
  return attention(view, view, view, {}, {.out = Tensor(out.data(), shape)}, context);
}

TEST(Context, MovedFromIsLikeNew) {
  Context context(2);
  const int threads = context.threads();
  ASSERT_TRUE(attend(context).ok());
  Context moved = std::move(context);
  EXPECT_GT(moved.scratch_bytes(), 0U);
  EXPECT_FALSE(moved.last_kernel().empty());

  // NOLINTBEGIN(bugprone-use-after-move)
  EXPECT_EQ(context.threads(), threads);
  EXPECT_EQ(context.scratch_bytes(), 0U);
  EXPECT_TRUE(context.last_kernel().empty());
  EXPECT_TRUE(context.last_linear_kernel().empty());
  EXPECT_TRUE(attend(context).ok());
  EXPECT_FALSE(context.last_kernel().empty());
  // NOLINTEND(bugprone-use-after-move)

  Context& itself = moved;
  moved = std::move(itself);
  EXPECT_TRUE(attend(moved).ok());
}

}  // namespace
}  // namespace multihead
