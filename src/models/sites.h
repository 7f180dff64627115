// The sites of a model, and the checks of what reads and changes them.
#pragma once

#include <span>
#include <string>

#include "models/run.h"

namespace multihead::models {

// The site's value in a pass: its shape, and the axes of tokens and heads.
struct SiteShape {
  Dims shape;
  int token_axis = 1;
  int head_axis = -1;  // none
};
SiteShape shape_of(const Model::Internals& model, const Pass& pass, Site site);

// kOption, which lists the sites that the model has, if this is none of them.
Status check_site(const Model::Internals& model, const std::string& argument, Site site);
// Errors: kShape, kOption.
Status check_edits(const Model::Internals& model, const Pass& pass);
Status check_captures(const Model::Internals& model, const Pass& pass,
                      std::span<const Capture> captures, const std::string& argument = "captures");
// kShape if an output or a capture lies in memory of an input or of another one: layers write
// outputs before later ones read inputs.
Status check_apart(const ModelInputs& inputs, std::span<const Capture> captures,
                   const ModelOutputs& outputs);

}  // namespace multihead::models
