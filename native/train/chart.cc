// Draws the curve of a run as SVG. Lines differ in color and in their dashes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "curve.h"

namespace multihead::train {
namespace {

constexpr double kWidth = 980, kPanelHeight = 280, kLeft = 64, kRight = 24, kTitle = 40;
constexpr double kLegend = 40;  // between the top of a panel and its axes
constexpr double kAxis = 44;    // below the axes

// Colors of Okabe and Ito, which color-blind readers can tell apart; lighter variants for dark
// pages.
struct Style {
  const char *light, *dark, *dashes;
};
constexpr Style kStyles[] = {{"#8a8a8a", "#9a9a9a", "none"},    {"#0072b2", "#56b4e9", "none"},
                             {"#c04d00", "#ff9d5c", "7 3"},     {"#007a5a", "#2fcfa0", "2 3"},
                             {"#a3437f", "#e79fc8", "9 3 2 3"}, {"#222222", "#eeeeee", "none"}};

struct Series {
  std::string name;
  size_t style;
  std::vector<std::pair<double, double>> points;
};

struct Panel {
  std::string title;
  double highest = 0;
  std::vector<Series> series;
};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string shown(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

std::string fixed(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

// Distance of axis ticks: a round number, so that about five ticks reach from 0 to `largest`.
double tick(double largest) {
  const double rough = largest / 5;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

std::string text_at(double x, double y, const std::string& content, const char* attributes) {
  return "<text x=\"" + fixed(x) + "\" y=\"" + fixed(y) + "\" " + attributes + ">" +
         escaped(content) + "</text>\n";
}

std::string line(double x1, double y1, double x2, double y2, const std::string& of_class) {
  return "<line x1=\"" + fixed(x1) + "\" y1=\"" + fixed(y1) + "\" x2=\"" + fixed(x2) + "\" y2=\"" +
         fixed(y2) + "\" class=\"" + of_class + "\"/>\n";
}

std::string legend(const std::vector<Series>& series, double top) {
  std::string text;
  double x = kLeft;
  for (const Series& one : series) {
    text += line(x, top + 26, x + 26, top + 26, "s" + std::to_string(one.style));
    text += text_at(x + 32, top + 30, one.name, "class=\"ink\"");
    x += 52 + 7.0 * static_cast<double>(one.name.size());
  }
  return text;
}

std::string drawn(const Panel& panel, double top, double last_step) {
  const double bottom = top + kPanelHeight - kAxis, height = kPanelHeight - kAxis - kLegend;
  const double x_tick = tick(std::max(last_step, 5.0)), y_tick = tick(panel.highest);
  const double x_end = std::max(last_step, 1.0);
  const double y_end = std::ceil(panel.highest / y_tick - 1e-9) * y_tick;
  const auto x_of = [&](double step) { return kLeft + (kWidth - kLeft - kRight) * step / x_end; };
  const auto y_of = [&](double value) {
    return bottom - height * std::clamp(value, 0.0, y_end) / y_end;
  };
  std::string text = text_at(kLeft, top + 10, panel.title, "class=\"ink\" font-weight=\"600\"");
  text += legend(panel.series, top);
  for (int i = 0; i * y_tick <= y_end + 1e-9 * y_end; ++i) {
    text += line(kLeft, y_of(i * y_tick), kWidth - kRight, y_of(i * y_tick), "grid");
    text += text_at(kLeft - 8, y_of(i * y_tick) + 4, shown(i * y_tick),
                    "class=\"ink\" text-anchor=\"end\"");
  }
  for (int i = 0; i * x_tick <= x_end; ++i) {
    text += text_at(x_of(i * x_tick), bottom + 18, shown(i * x_tick),
                    "class=\"ink\" text-anchor=\"middle\"");
  }
  text += text_at((kLeft + kWidth - kRight) / 2, bottom + 36, "step",
                  "class=\"ink\" text-anchor=\"middle\"");
  for (const Series& one : panel.series) {
    text += "<polyline class=\"s" + std::to_string(one.style) + "\" points=\"";
    for (const auto& [step, value] : one.points) {
      // Skip losses that are not finite: they cannot be drawn.
      if (std::isfinite(value)) text += fixed(x_of(step)) + "," + fixed(y_of(value)) + " ";
    }
    text += "\"/>\n";
  }
  return text;
}

// Reduces a line to at most 400 points; each new point is the mean over equally many steps.
std::vector<std::pair<double, double>> averaged(
    const std::vector<std::pair<double, double>>& points) {
  constexpr size_t kMost = 400;
  const size_t group = (points.size() + kMost - 1) / kMost;
  if (group <= 1) return points;
  std::vector<std::pair<double, double>> means;
  for (size_t first = 0; first < points.size(); first += group) {
    const size_t end = std::min(first + group, points.size());
    double steps = 0, values = 0;
    for (size_t i = first; i < end; ++i) {
      steps += points[i].first;
      values += points[i].second;
    }
    const auto count = static_cast<double>(end - first);
    means.emplace_back(steps / count, values / count);
  }
  return means;
}

std::string styles() {
  std::string light = ".paper{fill:#fff}.ink{fill:#222}.grid{stroke:#ddd}",
              dark = ".paper{fill:#161616}.ink{fill:#e8e8e8}.grid{stroke:#3a3a3a}";
  for (size_t i = 0; i < std::size(kStyles); ++i) {
    const std::string name = ".s" + std::to_string(i);
    light += name + "{stroke:" + kStyles[i].light + ";stroke-width:" + (i == 0 ? "1" : "1.8") +
             ";stroke-dasharray:" + kStyles[i].dashes + ";fill:none}";
    dark += name + "{stroke:" + kStyles[i].dark + "}";
  }
  return "<style>" + light + "@media (prefers-color-scheme: dark){" + dark + "}</style>\n";
}

}  // namespace

std::string chart(const Curve& curve, const std::string& title) {
  constexpr size_t kTraining = 0, kFirstJob = 1, kHeldOut = 5;
  Series loss{"training", kTraining, {}}, held_out_loss{"held out", kHeldOut, {}};
  Series accuracy{"training", kTraining, {}}, held_out_accuracy{"held out", kHeldOut, {}};
  std::vector<Series> jobs;
  jobs.reserve(curve.jobs.size());
  for (size_t job = 0; job < curve.jobs.size(); ++job) {
    // Four jobs have a style each; more jobs share styles.
    jobs.push_back({curve.jobs[job], kFirstJob + job % (kHeldOut - kFirstJob), {}});
  }
  double last_step = 0, highest_loss = 1e-3;
  for (const CurvePoint& point : curve.points) {
    const auto step = static_cast<double>(point.step);
    last_step = std::max(last_step, step);
    loss.points.emplace_back(step, point.loss);
    accuracy.points.emplace_back(step, 100 * point.accuracy);
    if (std::isfinite(point.loss)) {
      highest_loss = std::max(highest_loss, static_cast<double>(point.loss));
    }
    if (!point.held_out) continue;
    held_out_loss.points.emplace_back(step, point.held_out->loss);
    held_out_accuracy.points.emplace_back(step, 100 * point.held_out->accuracy);
    for (size_t job = 0; job < jobs.size(); ++job) {
      jobs[job].points.emplace_back(step, 100 * point.held_out->jobs[job]);
    }
  }
  loss.points = averaged(loss.points);
  accuracy.points = averaged(accuracy.points);
  Panel panels[] = {{"Loss, nats", highest_loss, {loss, held_out_loss}},
                    {"Accuracy, %", 100, {accuracy}}};
  if (jobs.size() > 1) {
    panels[1].series.insert(panels[1].series.end(), jobs.begin(), jobs.end());
  } else {
    panels[1].series.push_back(held_out_accuracy);
  }
  const double height = kTitle + 2 * kPanelHeight;
  const std::string size = "width=\"" + fixed(kWidth) + "\" height=\"" + fixed(height) + "\"";
  std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size + " viewBox=\"0 0 " +
                     fixed(kWidth) + " " + fixed(height) +
                     "\" font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\">\n" +
                     "<title>" + escaped(title) + "</title>\n" + styles() +
                     "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n";
  text += text_at(kLeft, 24, title, "class=\"ink\" font-size=\"15\" font-weight=\"600\"");
  for (size_t i = 0; i < std::size(panels); ++i) {
    text += drawn(panels[i], kTitle + static_cast<double>(i) * kPanelHeight, last_step);
  }
  return text + "</svg>\n";
}

}  // namespace multihead::train
